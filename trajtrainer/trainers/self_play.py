"""Self-play: one team learns, the others play as it was at some time before.

See docs/mlagents-behavior.md#self-play. The learner decides who plays whom; actors apply it and report results. A
checkpoint may be made from the trainer's thread.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsReporter
from trajtrainer.nn.init import derived_seeds
from trajtrainer.settings.trainer import SelfPlaySettings

_SCALE = 400.0
# Weight of a result after one more, so that some hundred of them count: the policy that learns changes.
_FADING = 0.99


@dataclass(slots=True, eq=False)
class Player:
    """A policy as it was at some step, or the present one.

    Attributes:
        name: tells it apart from the others of its behavior.
        elo: its rating.
        weights: of its actor, never changed; empty for the present policy and for those of files.
        acts: plays as it, if it comes from a file.
        games: results against it, the older ones faded.
        lost: those of them that the policy which learns has won, draws by half.
    """

    name: str
    elo: float
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    acts: Acts | None = None
    games: float = 0.0
    lost: float = 0.0

    @property
    def beaten(self) -> float:
        """The probability that it is beaten, above 0 and below 1."""
        return (self.lost + 0.5) / (self.games + 1.0)


def expected_score(elo: float, opponent: float) -> float:
    """What a player of rating ``elo`` scores on average, from 0 to 1."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - elo) / _SCALE))


def rate(learner: Player, opponents: Sequence[Player], result: float) -> None:
    """Change the ratings by one result.

    Args:
        learner: whose result it is.
        opponents: at least one. Each gives its part of what the learner gets; it may be the learner itself.
        result: 1 for a win, 0 for a loss, 0.5 for a draw.
    """
    changes = [(result - expected_score(learner.elo, opponent.elo)) / len(opponents) for opponent in opponents]
    for opponent, change in zip(opponents, changes, strict=True):
        opponent.elo -= change
        opponent.games = opponent.games * _FADING + 1.0
        opponent.lost = opponent.lost * _FADING + result
    learner.elo += sum(changes)


logger = logging.getLogger(__name__)

ELO = "Self-play/ELO"
_LATEST = "latest"
# Episodes of the only team after which no other one is waited for.
_PATIENCE = 10


class TeamRotation:
    """The teams of all behaviors of a run that have self-play; one of them learns.

    Attributes:
        learning: the team that learns; None before there is any.
        num_changes: how often another team has begun to learn.
        lock: held by who changes or saves anything of self-play.
    """

    def __init__(self) -> None:
        """Begin without teams."""
        self.learning: int | None = None
        self.lock = threading.RLock()
        self._waiting: deque[int] = deque()
        self._sides: dict[int, SelfPlay] = {}
        self.num_changes = 0
        self._has_changed = False
        self._newer: Mapping[str, Any] | None = None

    @property
    def num_teams(self) -> int:
        """How many teams have appeared."""
        return len(self._sides)

    def join(self, team: int, side: SelfPlay) -> None:
        """Add a team of a behavior. The first of all learns first."""
        self._sides.setdefault(team, side)
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self._waiting:
            self._waiting.append(team)

    def change(self) -> None:
        """Let the team learn that has waited longest. All episodes have to begin anew."""
        if not self._waiting or self.learning is None:
            return
        self._waiting.append(self.learning)
        self.learning = self._waiting.popleft()
        self.num_changes += 1
        self._has_changed = True
        logger.debug("Team %d learns now.", self.learning)

    def take_change(self) -> bool:
        """Whether another team learns since the last call."""
        if self._newer is not None:
            before, newer, self._newer = self.learning, self._newer, None
            self._take(newer)
            self._has_changed |= before != self.learning
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def opponents(self, asking: SelfPlay) -> list[Player]:
        """Who plays for the teams that do not learn, as a behavior meets them: its own where it has any."""
        others = [(team, side) for team, side in self._sides.items() if team != self.learning]
        found = (asking.player(team) or side.player(team) for team, side in others)
        return [player for player in found if player is not None]

    def state(self) -> dict[str, Any]:
        """Plain data. Each behavior saves it: the one with most changes is the newest."""
        return {"learning": self.learning, "waiting": list(self._waiting), "changes": self.num_changes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave, unless what is known is as new.

        What another behavior has saved later counts from ``take_change`` on: messages may be half taken in.
        """
        if self.learning is None:
            self._take(state)
        elif int(state["changes"]) > (self.num_changes if self._newer is None else int(self._newer["changes"])):
            self._newer = state

    def _take(self, state: Mapping[str, Any]) -> None:
        joined = [*self._waiting, *([] if self.learning is None else [self.learning])]
        self.learning, self.num_changes = int(state["learning"]), int(state["changes"])
        teams = dict.fromkeys([*map(int, state["waiting"]), *joined])
        self._waiting = deque(team for team in teams if team != self.learning)


@dataclass(frozen=True, slots=True)
class OpponentSlot:
    """Who plays for a team that does not learn.

    Attributes:
        player: as whom it plays.
        weights: by which; empty if the player acts itself.
        since: how often another team had begun to learn when this one stopped learning.
    """

    player: Player
    weights: Mapping[str, Tensor]
    since: int


class SelfPlay:
    """The teams of one behavior: whose experience counts, who plays for the others, and the ratings.

    Attributes:
        settings: of the behavior.
        opponent_steps: of the agents that do not learn, as ``OpponentTracker`` counts them.
        is_restored: whether it continues from what an earlier run saved.
        slots: behavior id -> who plays for a team that does not learn.
    """

    def __init__(
        self,
        settings: SelfPlaySettings,
        rotation: TeamRotation,
        *,
        behavior: str,
        seed: int,
        policy: Policy,
        policies: PolicyQueue[Tensor],
        reporter: StatsReporter,
        step: Callable[[], int],
        files: Sequence[Player] = (),
    ) -> None:
        """Begin without teams.

        Args:
            settings: of the behavior.
            rotation: of the run.
            behavior: name without team.
            seed: of the run.
            policy: acts for the team that learns.
            policies: what is on the way to ``policy``.
            reporter: of the behavior's statistics.
            step: gives how many steps have been collected of the team that learns, those of earlier runs included.
            files: opponents that the settings name, which never change.
        """
        self.settings = settings
        self.opponent_steps = 0
        self.is_restored = False
        self._rotation = rotation
        self._behavior = behavior
        self._seed = seed
        self._policy = policy
        self._policies = policies
        self._reporter = reporter
        self._step = step
        self._files = list(files)
        self._draws = torch.Generator().manual_seed(derived_seeds(seed, f"{behavior} opponents")[0])
        self._latest = Player(_LATEST, settings.initial_elo)
        self._snapshots: deque[Player] = deque(maxlen=settings.window)
        self._teams: dict[str, int] = {}
        self.slots: dict[str, OpponentSlot] = {}
        self._saved_slots: dict[str, OpponentSlot] = {}
        self._learning: int | None = None
        self._num_choices = 0
        save, swap, change = settings.save_steps, settings.swap_steps, settings.team_change
        self._intervals = {"save": save, "swap": swap, "team_change": change}
        self._counters = dict.fromkeys(self._intervals, 0)
        # Of the team that learns, in this process.
        self._num_episodes = self._num_steps = 0

    @property
    def elo(self) -> float:
        """The rating of the present policy."""
        return self._latest.elo

    def learns(self, team: int) -> bool:
        """Whether this team learns."""
        return team == self._rotation.learning

    @property
    def number(self) -> tuple[int, int]:
        """How often another team has begun to learn, and how often an opponent was chosen; changes with the slots."""
        return self._rotation.num_changes, self._num_choices

    @property
    def learning(self) -> int | None:
        """The team that learns; None before there is any."""
        return self._rotation.learning

    def player(self, team: int) -> Player | None:
        """Who plays for a team of this behavior; None if it has no such team, or if that learns."""
        return next((slot.player for name, slot in self.slots.items() if self._teams[name] == team), None)

    def join(self, behavior_id: BehaviorId) -> None:
        """Add a team, at its first message. The first one of all saves the first snapshot."""
        with self._rotation.lock:
            self._rotation.join(behavior_id.team, self)
            self._teams[behavior_id.full] = behavior_id.team
            if not self._snapshots:
                self._save()
            if len(self._teams) == 1:
                self._learning = self._rotation.learning
            if self.learns(behavior_id.team):
                return
            saved = self._saved_slots.pop(behavior_id.full, None)
            if saved is None:
                self._let_play(behavior_id.full, self._snapshots[-1])
            else:
                self._let_play(behavior_id.full, saved.player, saved.weights)

    def count(self, num_episodes: int, num_steps: int, results: Sequence[float]) -> None:
        """Count episodes and steps of the team that learns, and rate the results of its matches.

        Args:
            num_episodes: that ended.
            num_steps: of finished trajectories.
            results: see ``match_results``.

        Raises:
            SettingsError: there is only one team.
        """
        self._num_episodes += num_episodes
        self._num_steps += num_steps
        if self._rotation.num_teams < 2 and (
            self._num_episodes >= _PATIENCE or self._num_steps > self.settings.save_steps
        ):
            raise SettingsError(self._alone())
        with self._rotation.lock:
            opponents = self._rotation.opponents(self)
            for result in results if opponents else ():
                rate(self._latest, opponents, result)
                self._reporter.add(ELO, self._latest.elo)

    def change_team(self) -> None:
        """Let another team learn if it is time."""
        if self._left("team_change") <= 0:
            self._counters["team_change"] = self._step()
            with self._rotation.lock:
                self._rotation.change()

    def update_opponents(self) -> None:
        """Save the present policy, and choose other opponents, if it is time."""
        with self._rotation.lock:
            if self._left("save") <= 0:
                self._counters["save"] = self._step()
                self._save()
            if self._left("swap") <= 0 or self._learning != self._rotation.learning:
                self._counters["swap"] = self.opponent_steps
                self._learning = self._rotation.learning
                self._swap()

    def left(self) -> tuple[int, int]:
        """The steps of the team that learns, and of the others, until something of this changes."""
        return min(self._left("team_change"), self._left("save")), self._left("swap")

    def _left(self, what: str) -> int:
        """The steps until something is due; 0 or less for now. As in ML-Agents one more than the interval."""
        now = self.opponent_steps if what == "swap" else self._step()
        return self._counters[what] + self._intervals[what] + 1 - now

    def _take_latest_policy(self) -> None:
        update = self._policies.latest(self._behavior)
        if update is not None:
            self._policy.load(update)

    def _save(self) -> None:
        self._take_latest_policy()
        self._snapshots.append(Player(f"step {self._step()}", self._latest.elo, self._policy.weights()))

    def _swap(self) -> None:
        self._take_latest_policy()
        for name, team in self._teams.items():
            if self.learns(team):
                self.slots.pop(name, None)
            else:
                self._let_play(name, self._choose())

    def _let_play(self, name: str, player: Player, weights: Mapping[str, Tensor] | None = None) -> None:
        """Let a team play as ``player``; the present policy stays as it is now, or as ``weights`` say."""
        known = self.slots.get(name)
        since = self._rotation.num_changes if known is None else known.since
        if weights is None:
            weights = self._policy.weights() if player is self._latest else player.weights
        self.slots[name] = OpponentSlot(player, weights if player.acts is None else {}, since)
        self._num_choices += 1
        logger.debug("%s plays as %s, rating %.1f.", name, player.name, player.elo)

    def _choose(self) -> Player:
        if float(torch.rand((), generator=self._draws)) >= 1 - self.settings.play_against_latest_model_ratio:
            return self._latest
        players = [*self._snapshots, *self._files]
        if self.settings.prioritized:
            # Prioritized fictitious self-play with f_hard, p = 2 (Vinyals et al. 2019, Methods).
            chances = torch.tensor([(1 - player.beaten) ** 2 for player in players])
            return players[int(torch.multinomial(chances, 1, generator=self._draws))]
        return players[int(torch.randint(len(players), (), generator=self._draws))]

    def _alone(self) -> str:
        (team,) = self._teams.values()
        return (
            f"Behavior {self._behavior!r} has self_play, but after {self._num_steps} steps and {self._num_episodes} "
            f"episodes there is one team only (team {team}): nobody plays against it. Give the agents of the other "
            "side another Team Id in Unity (Behavior Parameters), or leave self_play out."
        )

    def state(self) -> dict[str, Any]:
        """Plain data and tensors that are never changed. May be called from any thread."""
        with self._rotation.lock:
            return {
                "rotation": self._rotation.state(),
                "counters": {**self._counters, "opponent_steps": self.opponent_steps},
                "elo": self._latest.elo,
                "snapshots": [_player_state(player) for player in self._snapshots],
                "ratings": {
                    player.name: [player.elo, player.games, player.lost] for player in [self._latest, *self._files]
                },
                "teams": {
                    name: {"player": _player_state(slot.player), "weights": dict(slot.weights)}
                    for name, slot in self.slots.items()
                },
                "draws": self._draws.get_state(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave, before any team joins. Snapshots of other networks are left out.

        Raises:
            KeyError: something is missing.
            TypeError: something is of another kind.
        """
        self.is_restored = True
        counters = dict(state["counters"])
        self.opponent_steps = int(counters.pop("opponent_steps"))
        self._counters = {name: int(counters[name]) for name in self._counters}
        for player in [self._latest, *self._files]:
            if player.name in state["ratings"]:
                player.elo, player.games, player.lost = map(float, state["ratings"][player.name])
        shapes = {name: weights.shape for name, weights in self._policy.weights().items()}
        self._snapshots.extend(self._fitting(state["snapshots"], shapes))
        known = {player.name: player for player in [self._latest, *self._files, *self._snapshots]}
        for name, saved in state["teams"].items():
            player = known.get(saved["player"]["name"]) or Player(**saved["player"])
            if player.acts is not None or _shapes(saved["weights"]) == shapes:
                self._saved_slots[name] = OpponentSlot(player, saved["weights"], 0)
        self._draws.set_state(state["draws"])
        self._rotation.restore(state["rotation"])

    def begin_at(self, step: int, elo: float | None) -> None:
        """Go on from the checkpoint of a run that has saved no more than this."""
        self._counters |= {"save": step, "team_change": step}
        if elo is not None:
            self._latest.elo = elo

    def _fitting(self, players: Sequence[Mapping[str, Any]], shapes: Mapping[str, torch.Size]) -> Iterator[Player]:
        for player in players:
            if _shapes(player["weights"]) == shapes:
                yield Player(**player)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def _player_state(player: Player) -> dict[str, Any]:
    return {
        "name": player.name,
        "elo": player.elo,
        "weights": dict(player.weights),
        "games": player.games,
        "lost": player.lost,
    }
