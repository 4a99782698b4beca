"""Self-play: one team learns, and the other teams play with earlier versions of the policy.

This follows ML-Agents (docs/explanation/mlagents-behavior.md#self-play). The learner chooses the opponents. Actors
apply these choices and report results. A lock is needed because the trainer's thread may save a checkpoint at any time.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trajtrainer.core.numeric import count_in
from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.seeds import derived_seeds
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsReporter
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.settings.trainer import SelfPlaySettings

ELO = "Self-play/ELO"
_LATEST = "latest"
# Number of single-team episodes before the warning about a missing opponent.
_PATIENCE = 10
_SCALE = 400.0
# Factor by which each new result reduces the weight of older ones. The learner changes, so only about the last hundred
# results should count.
_FADING = 0.99

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Player:
    """An earlier version of a policy, the current policy, or a policy from a file.

    Attributes:
        name: a name that is unique within the behavior.
        elo: the player's Elo rating.
        weights: weights of the player's actor, which never change; empty for the current policy and for policies from
            files.
        acts: the policy, if it comes from a file.
        games: number of games against the player, with lower weights for older games.
        lost: number of these games that the learner won, with the same weights. Draws count half.
    """

    name: str
    elo: float
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    acts: Policy | None = None
    games: float = 0.0
    lost: float = 0.0

    @property
    def beaten(self) -> float:
        """The estimated probability that the learner beats this player, between 0 and 1 exclusive."""
        return (self.lost + 0.5) / (self.games + 1.0)


def expected_score(elo: float, opponent: float) -> float:
    """Return the expected score, from 0 to 1, of a player rated ``elo`` against an opponent."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - elo) / _SCALE))


def rate(learner: Player, opponents: Sequence[Player], result: float) -> None:
    """Update the ratings with one result.

    Args:
        learner: the player that learns. ``result`` is from its point of view.
        opponents: one or more opponents. Each loses its share of what the learner gains. The learner itself may be an
            opponent.
        result: 1 for a win, 0 for a loss, 0.5 for a draw.
    """
    changes = [(result - expected_score(learner.elo, opponent.elo)) / len(opponents) for opponent in opponents]
    for opponent, change in zip(opponents, changes, strict=True):
        opponent.elo -= change
        opponent.games = opponent.games * _FADING + 1.0
        opponent.lost = opponent.lost * _FADING + result
    learner.elo += sum(changes)


class TeamRotation:
    """The teams of all behaviors with self-play in a run. One of the teams learns.

    Attributes:
        learning: the team that learns; None before the first team joins.
        num_changes: number of times that the learning team has changed.
        lock: held while the state of self-play is changed or saved.
    """

    def __init__(self) -> None:
        self.learning: int | None = None
        self.lock = threading.RLock()
        self._waiting: deque[int] = deque()
        self._sides: dict[int, SelfPlay] = {}
        self.num_changes = 0
        self._has_changed = False
        self._newer: Mapping[str, Any] | None = None

    @property
    def num_teams(self) -> int:
        return len(self._sides)

    def join(self, team: int, side: SelfPlay) -> None:
        """Add a team of a behavior. The run's first team is the first to learn."""
        self._sides.setdefault(team, side)
        if self.learning is None:
            self.learning = team
        elif team != self.learning and team not in self._waiting:
            self._waiting.append(team)

    def change(self) -> None:
        """Make the team that has waited longest the learning team. Afterward, all episodes have to restart."""
        if not self._waiting or self.learning is None:
            return
        self._waiting.append(self.learning)
        self.learning = self._waiting.popleft()
        self.num_changes += 1
        self._has_changed = True
        logger.debug("Team %d is learning now.", self.learning)

    def take_change(self) -> bool:
        """Return whether the learning team has changed since the last call."""
        if self._newer is not None:
            before, newer, self._newer = self.learning, self._newer, None
            self._take(newer)
            self._has_changed |= before != self.learning
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def opponents(self, asking: SelfPlay) -> list[Player]:
        """Return the players of all teams that do not learn. If a team has several, prefer the player of ``asking``."""
        others = [(team, side) for team, side in self._sides.items() if team != self.learning]
        found = (asking.player(team) or side.player(team) for team, side in others)
        return [player for player in found if player is not None]

    def state(self) -> dict[str, Any]:
        """Return the state as plain data. Each behavior saves it; the state with the most changes is the newest."""
        return {"learning": self.learning, "waiting": list(self._waiting), "changes": self.num_changes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``state``, unless the current state is at least as new.

        A newer state from another behavior takes effect at the next ``take_change``, because messages may be partly
        processed now.
        """
        if self.learning is None:
            self._take(state)
        elif int(state["changes"]) > (self.num_changes if self._newer is None else int(self._newer["changes"])):
            self._newer = state

    def _take(self, state: Mapping[str, Any]) -> None:
        joined = [*self._waiting, *([] if self.learning is None else [self.learning])]
        self.learning, self.num_changes = count_in(state["learning"]), count_in(state["changes"])
        teams = dict.fromkeys([*map(int, state["waiting"]), *joined])
        self._waiting = deque(team for team in teams if team != self.learning)


@dataclass(frozen=True, slots=True)
class OpponentSlot:
    """The opponent that plays for a team that does not learn.

    Attributes:
        player: the opponent.
        weights: the opponent's weights; empty if ``player.acts`` provides the policy.
        since: ``TeamRotation.num_changes`` when this team stopped learning.
    """

    player: Player
    weights: Mapping[str, Tensor]
    since: int


class SelfPlay:
    """The teams of one behavior: which team learns, who plays for the other teams, and the ratings.

    Attributes:
        settings: the behavior's self-play settings.
        opponent_steps: number of steps of agents that do not learn, counted by ``OpponentTracker``.
        is_restored: True if the state was restored from a checkpoint.
        slots: the opponent slots of the teams that do not learn, by behavior id.
    """

    def __init__(
        self,
        settings: SelfPlaySettings,
        rotation: TeamRotation,
        *,
        behavior: str,
        seed: int,
        policy: ActorPolicy,
        policies: PolicyQueue[Tensor],
        reporter: StatsReporter,
        step: Callable[[], int],
        files: Sequence[Player] = (),
    ) -> None:
        """Start without teams.

        Args:
            settings: the behavior's self-play settings.
            rotation: the run's team rotation.
            behavior: name of the behavior, without the team.
            seed: seed of the run.
            policy: the policy that acts for the team that learns.
            policies: the queue of updates for ``policy``.
            reporter: receives the behavior's statistics.
            step: returns the number of steps collected from the team that learns, including those of earlier runs.
            files: fixed opponents from the settings.
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
        # Totals of the learning team since this process started.
        self._num_episodes = self._num_steps = 0
        self._has_warned = False  # set after the warning about a missing opponent

    @property
    def elo(self) -> float:
        """The rating of the current policy."""
        return self._latest.elo

    def learns(self, team: int) -> bool:
        return team == self._rotation.learning

    @property
    def number(self) -> tuple[int, int]:
        """How many team changes and opponent choices there were so far. This changes whenever ``slots`` does."""
        return self._rotation.num_changes, self._num_choices

    @property
    def learning(self) -> int | None:
        """The team that learns; None before the first team joins."""
        return self._rotation.learning

    def player(self, team: int) -> Player | None:
        """Return the opponent that plays for a team of this behavior; None if the team is unknown or learns."""
        return next((slot.player for name, slot in self.slots.items() if self._teams[name] == team), None)

    def join(self, behavior_id: BehaviorId) -> None:
        """Add a team when its first message arrives. The behavior's first team saves the first snapshot."""
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
            num_episodes: number of episodes that ended.
            num_steps: number of steps in finished trajectories.
            results: results from ``match_results``.
        """
        self._num_episodes += num_episodes
        self._num_steps += num_steps
        has_waited = self._num_episodes >= _PATIENCE or self._num_steps > self.settings.save_steps
        if self._rotation.num_teams < 2 and has_waited and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Behavior %r has self_play, but after %d steps and %d episodes there is only one team (team %d), so it "
                "trains without an opponent until another team appears. If there should be an opponent, give its "
                "agents a different Team Id in Unity (Behavior Parameters). Otherwise, remove self_play.",
                self._behavior,
                self._num_steps,
                self._num_episodes,
                self._rotation.learning,
            )
        with self._rotation.lock:
            opponents = self._rotation.opponents(self)
            for result in results if opponents else ():
                rate(self._latest, opponents, result)
                self._reporter.add(ELO, self._latest.elo)

    def change_team(self) -> None:
        """Change the learning team if that is due."""
        if self._left("team_change") <= 0:
            self._counters["team_change"] = self._step()
            with self._rotation.lock:
                self._rotation.change()

    def update_opponents(self) -> None:
        """Save the current policy as a snapshot and choose new opponents, whenever either is due."""
        with self._rotation.lock:
            if self._left("save") <= 0:
                self._counters["save"] = self._step()
                self._save()
            if self._left("swap") <= 0 or self._learning != self._rotation.learning:
                self._counters["swap"] = self.opponent_steps
                self._learning = self._rotation.learning
                self._take_latest_policy()
                for name, team in self._teams.items():
                    if self.learns(team):
                        self.slots.pop(name, None)
                    else:
                        self._let_play(name, self._choose())

    def left(self) -> tuple[int, int]:
        """Return how many steps of the learning team, and how many of the other teams, remain until the next event."""
        return min(self._left("team_change"), self._left("save")), self._left("swap")

    def _left(self, what: str) -> int:
        """Return the number of steps until an event is due, or 0 or less if it is due now.

        As in ML-Agents, intervals are one step longer than in the settings.
        """
        now = self.opponent_steps if what == "swap" else self._step()
        return self._counters[what] + self._intervals[what] + 1 - now

    def _take_latest_policy(self) -> None:
        update = self._policies.latest(self._behavior)
        if update is not None:
            self._policy.load(update)

    def _save(self) -> None:
        self._take_latest_policy()
        self._snapshots.append(Player(f"step {self._step()}", self._latest.elo, self._policy.weights()))

    def _let_play(self, name: str, player: Player, weights: Mapping[str, Tensor] | None = None) -> None:
        """Let ``player`` play for a team. For the current policy, ``weights`` default to a copy of its weights."""
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
            # Prioritized fictitious self-play with f_hard and p = 2 (Vinyals et al. 2019, Methods).
            chances = torch.tensor([(1 - player.beaten) ** 2 for player in players])
            return players[int(torch.multinomial(chances, 1, generator=self._draws))]
        return players[int(torch.randint(len(players), (), generator=self._draws))]

    def state(self) -> dict[str, Any]:
        """Return the state: plain data, and tensors that never change. May be called from any thread."""
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
        """Restore the state returned by ``state``, before any team joins. Snapshots of other networks are skipped.

        Raises:
            KeyError: a part of the state is missing.
            TypeError: a part of the state has the wrong type.
        """
        self.is_restored = True
        counters = dict(state["counters"])
        self.opponent_steps = count_in(counters.pop("opponent_steps"))
        self._counters = {name: count_in(counters[name]) for name in self._counters}
        for player in [self._latest, *self._files]:
            if player.name in state["ratings"]:
                player.elo, player.games, player.lost = map(float, state["ratings"][player.name])
        shapes = {name: weights.shape for name, weights in self._policy.weights().items()}
        fitting = [player for player in state["snapshots"] if _shapes(player["weights"]) == shapes]
        self._snapshots.extend(Player(**player) for player in fitting)
        known = {player.name: player for player in [self._latest, *self._files, *self._snapshots]}
        for name, saved in state["teams"].items():
            player = known.get(saved["player"]["name"]) or Player(**saved["player"])
            if player.acts is not None or _shapes(saved["weights"]) == shapes:
                self._saved_slots[name] = OpponentSlot(player, saved["weights"], 0)
        self._draws.set_state(state["draws"])
        self._rotation.restore(state["rotation"])

    def begin_at(self, step: int, elo: float | None) -> None:
        """Continue from a checkpoint that only contains a step and possibly a rating, such as ML-Agents'."""
        self._counters |= {"save": step, "team_change": step}
        if elo is not None:
            self._latest.elo = elo


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
