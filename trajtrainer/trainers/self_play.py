"""Self-play: one team learns, the others play as it was at some time before.

See docs/mlagents-behavior.md#self-play. All of it belongs to the acting side, which knows at each moment who plays
whom; of the trainer it asks for the step alone. A checkpoint may be made from the trainer's thread.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.queues import PolicyQueue, PolicyUpdate
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsReporter
from trajtrainer.data.opponents import OpponentTracker
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.nn.init import derived_seeds
from trajtrainer.settings.trainer import SelfPlaySettings
from trajtrainer.trainers.ratings import Player, rate

logger = logging.getLogger(__name__)

ELO = "Self-play/ELO"
_LATEST = "latest"
# Episodes of the only team after which no other one is waited for.
_PATIENCE = 10


class TeamRotation:
    """The teams of all behaviours of a run that have self-play; one of them learns.

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
        """Return how many teams have appeared."""
        return len(self._sides)

    def join(self, team: int, side: SelfPlay) -> None:
        """Add a team of a behaviour. The first of all learns first."""
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
        """Return whether another team learns since the last call."""
        if self._newer is not None:
            before, newer, self._newer = self.learning, self._newer, None
            self._take(newer)
            self._has_changed |= before != self.learning
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def opponents(self, asking: SelfPlay) -> list[Player]:
        """Return who plays for the teams that do not learn, as a behaviour meets them: its own where it has any."""
        others = [(team, side) for team, side in self._sides.items() if team != self.learning]
        found = (asking.player(team) or side.player(team) for team, side in others)
        return [player for player in found if player is not None]

    def state(self) -> dict[str, Any]:
        """Return plain data. Each behaviour saves it: the one with most changes is the newest."""
        return {"learning": self.learning, "waiting": list(self._waiting), "changes": self.num_changes}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave, unless what is known is as new.

        What another behaviour has saved later counts from ``take_change`` on: messages may be half taken in.
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


@dataclass(slots=True, eq=False)
class _Seat:
    """One team that does not learn, and whom it plays as: ``policy`` with ``weights``, or a player that acts itself."""

    policy: Policy
    player: Player
    since: int  # ``num_changes`` when it sat down
    weights: Mapping[str, Tensor] = field(default_factory=dict)

    def take(self, player: Player, weights: Mapping[str, Tensor]) -> None:
        self.player, self.weights = player, weights
        if weights:
            self.policy.load(PolicyUpdate(0, weights))

    @property
    def acts(self) -> Acts:
        return self.policy if self.player.acts is None else self.player.acts


class SelfPlay:
    """The teams of one behaviour: whose experience counts, who plays for the others, and the ratings.

    Attributes:
        tracker: of the agents that do not learn.
        settings: of the behaviour.
        is_restored: whether it goes on from what an earlier run saved.
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
        team_policies: dict[str, Acts],
        tracker: OpponentTracker,
        reporter: StatsReporter,
        step: Callable[[], int],
        files: Sequence[Player] = (),
    ) -> None:
        """Begin without teams.

        Args:
            settings: of the behaviour.
            rotation: of the run.
            behavior: name without team.
            seed: of the run.
            policy: acts for the team that learns.
            policies: what is on the way to ``policy``.
            team_policies: behaviour id -> who acts for it instead; kept up to date.
            tracker: of the agents that do not learn.
            reporter: of the behaviour's statistics.
            step: gives how many steps have been collected of the team that learns, those of earlier runs included.
            files: opponents that the settings name, which never change.
        """
        self.settings = settings
        self.tracker = tracker
        self.is_restored = False
        self._rotation = rotation
        self._behavior = behavior
        self._seed = seed
        self._policy = policy
        self._policies = policies
        self._team_policies = team_policies
        self._reporter = reporter
        self._step = step
        self._files = list(files)
        self._draws = torch.Generator().manual_seed(derived_seeds(seed, f"{behavior} opponents")[0])
        self._latest = Player(_LATEST, settings.initial_elo)
        self._snapshots: deque[Player] = deque(maxlen=settings.window)
        self._teams: dict[str, int] = {}
        self._seats: dict[str, _Seat] = {}
        self._saved_seats: dict[str, Any] = {}
        self._learning: int | None = None
        self._num_seatings = 0
        self._counters = {"save": 0, "swap": 0, "team_change": 0}
        # Of the team that learns, in this process.
        self._num_episodes = self._num_steps = 0

    @property
    def elo(self) -> float:
        """Return the rating of the present policy."""
        return self._latest.elo

    def learns(self, team: int) -> bool:
        """Return whether this team learns."""
        return team == self._rotation.learning

    @property
    def cast_number(self) -> tuple[int, int]:
        """Return what changes whenever another team learns or anybody else plays."""
        return self._rotation.num_changes, self._num_seatings

    @property
    def learning(self) -> int | None:
        """Return the team that learns; None before there is any."""
        return self._rotation.learning

    def seats(self) -> dict[str, tuple[Player, Mapping[str, Tensor], int]]:
        """Return who plays for the teams that do not learn, by behaviour id.

        Returns:
            Behaviour id -> player, the weights as which it plays (none: by itself), and how often another team had
            begun to learn when this one sat down.
        """
        with self._rotation.lock:
            return {
                name: (seat.player, {} if seat.player.acts is not None else seat.policy.weights(), seat.since)
                for name, seat in self._seats.items()
            }

    def player(self, team: int) -> Player | None:
        """Return who plays for a team of this behaviour; None if it has no such team, or if that learns."""
        return next((seat.player for name, seat in self._seats.items() if self._teams[name] == team), None)

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
            saved = self._saved_seats.pop(behavior_id.full, None)
            if saved is None:
                self._seat(behavior_id.full, self._snapshots[-1])
            else:
                self._seat(behavior_id.full, saved["player"], saved["weights"]).policy.set_rng_state(saved["rng"])

    def count(self, trajectories: TrajectoryBatch, results: Sequence[float]) -> None:
        """Take the results of one message of the team that learns.

        Args:
            trajectories: that the message finished.
            results: see ``match_results``.

        Raises:
            SettingsError: there is only one team.
        """
        self.count_episodes(int(np.count_nonzero(trajectories.ended)), trajectories.num_steps, results)

    def count_episodes(self, num_episodes: int, num_steps: int, results: Sequence[float]) -> None:
        """Take the same as numbers.

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
        if self._is_due("team_change", self._step(), self.settings.team_change):
            with self._rotation.lock:
                self._rotation.change()

    def update_opponents(self) -> None:
        """Save the present policy, and choose other opponents, if it is time."""
        with self._rotation.lock:
            if self._is_due("save", self._step(), self.settings.save_steps):
                self._save()
            others_learn = self._learning != self._rotation.learning
            if self._is_due("swap", self.tracker.num_steps, self.settings.swap_steps) or others_learn:
                self._counters["swap"] = self.tracker.num_steps
                self._learning = self._rotation.learning
                self._swap()

    def steps_until_due(self) -> tuple[int, int]:
        """Return the steps of the team that learns, and of the others, after which something of this may change."""
        collected, counters, settings = self._step(), self._counters, self.settings
        due = min(counters["team_change"] + settings.team_change, counters["save"] + settings.save_steps)
        of_others = counters["swap"] + settings.swap_steps - self.tracker.num_steps
        return max(1, due + 1 - collected), max(1, of_others + 1)

    def _is_due(self, what: str, now: int, interval: int) -> bool:
        is_due = now - self._counters[what] > interval
        if is_due:
            self._counters[what] = now
        return is_due

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
                self._seats.pop(name, None)
                self._team_policies.pop(name, None)
            else:
                self._seat(name, self._choose())

    def _seat(self, name: str, player: Player, weights: Mapping[str, Tensor] | None = None) -> _Seat:
        """Let a team play as ``player``; the present policy stays as it is now, or as ``weights`` say."""
        seat = self._seats.get(name)
        if seat is None:
            # Of each time that the team sits here its own.
            since = self._rotation.num_changes
            seed = derived_seeds(self._seed, f"{name} opponent {since}")[0]
            seat = self._seats[name] = _Seat(self._policy.twin(seed=seed), player, since)
        if weights is None:
            weights = self._policy.weights() if player is self._latest else player.weights
        seat.take(player, weights)
        self._team_policies[name] = seat.acts
        self._num_seatings += 1
        logger.debug("%s plays as %s, rating %.1f.", name, player.name, player.elo)
        return seat

    def _choose(self) -> Player:
        if float(torch.rand((), generator=self._draws)) >= 1 - self.settings.play_against_latest_model_ratio:
            return self._latest
        players = [*self._snapshots, *self._files]
        if self.settings.prioritized:
            # Prioritised fictitious self-play with f_hard, p = 2 (Vinyals et al. 2019, Methods).
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
        """Return plain data and tensors that are never changed. May be called from any thread."""
        with self._rotation.lock:
            return {
                "rotation": self._rotation.state(),
                "counters": {**self._counters, "opponent_steps": self.tracker.num_steps},
                "elo": self._latest.elo,
                "snapshots": [_player_state(player) for player in self._snapshots],
                "ratings": {
                    player.name: [player.elo, player.games, player.lost] for player in [self._latest, *self._files]
                },
                "teams": {
                    name: {
                        "player": _player_state(seat.player),
                        "weights": dict(seat.weights),
                        "rng": seat.policy.rng_state(),
                    }
                    for name, seat in self._seats.items()
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
        self.tracker.num_steps = int(counters.pop("opponent_steps"))
        self._counters = {name: int(counters[name]) for name in self._counters}
        for player in [self._latest, *self._files]:
            if player.name in state["ratings"]:
                player.elo, player.games, player.lost = map(float, state["ratings"][player.name])
        shapes = {name: weights.shape for name, weights in self._policy.weights().items()}
        self._snapshots.extend(self._fitting(state["snapshots"], shapes))
        known = {player.name: player for player in [self._latest, *self._files, *self._snapshots]}
        for name, seat in state["teams"].items():
            player = known.get(seat["player"]["name"]) or Player(**seat["player"])
            if player.acts is not None or _shapes(seat["weights"]) == shapes:
                self._saved_seats[name] = {**seat, "player": player}
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
