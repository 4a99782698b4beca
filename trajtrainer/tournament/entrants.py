"""Who takes part: runs, checkpoints and exported models, as they are named on the command line."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.errors import CheckpointError, SettingsError, TrajtrainerError
from trajtrainer.export.checkpoint_file import read_checkpoint
from trajtrainer.export.mlagents_layout import STEP, STEP_ENTRY
from trajtrainer.export.onnx_policy import OnnxPolicy
from trajtrainer.export.recovered_policy import recover_policy
from trajtrainer.nn.actor import Actor
from trajtrainer.rundir.filenames import behavior_of
from trajtrainer.rundir.saved_policies import SavedPolicy, find_checkpoints, find_policies
from trajtrainer.spec import BehaviorSpec

_ALL = "*"
_MODEL = ".onnx"
_STEP = re.compile(r"-(\d{1,18})$")
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class ActingOptions:
    """The way in which policies act.

    Attributes:
        deterministic: take the mean and the likeliest branch instead of sampling.
        device: where policies of checkpoints compute.
    """

    deterministic: bool = False
    device: torch.device | str = "cpu"


class PolicyFile(ABC):
    """One file with the policy of one behavior."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def check(self) -> None:
        """Look whether it can be read.

        Raises:
            TrajtrainerError: it cannot.
        """

    @abstractmethod
    def check_fit(self, spec: BehaviorSpec) -> None:
        """Look whether it is of agents that see and do what these do.

        Raises:
            TrajtrainerError: it is not.
        """

    @abstractmethod
    def policy(self, seed: int) -> Acts:
        """Return a policy with random numbers of its own, after ``check_fit``."""


class CheckpointPolicy(PolicyFile):
    """The policy of a checkpoint, ours or of ML-Agents."""

    def __init__(self, saved: SavedPolicy, options: ActingOptions) -> None:
        super().__init__(saved.checkpoint)
        self.steps: int | None = None
        self._options = options
        self._actor: Actor | None = None

    def check(self) -> None:
        """See ``PolicyFile``."""
        content = read_checkpoint(self.path)
        try:
            self.steps = int(content[STEP][STEP_ENTRY])
        except (KeyError, TypeError, ValueError, RuntimeError):
            self.steps = None

    def check_fit(self, spec: BehaviorSpec) -> None:
        """See ``PolicyFile``. What the agents see is what the environment says, which ML-Agents' files do not."""
        found = recover_policy(read_checkpoint(self.path), source=str(self.path), sensors=spec.observation_specs)
        if found.spec.action_spec != spec.action_spec:
            raise CheckpointError(
                f"{self.path} is of agents with other actions: {_actions(found.spec)}, not {_actions(spec)}."
            )
        self._actor = found.actor

    def policy(self, seed: int) -> Acts:
        """See ``PolicyFile``."""
        assert self._actor is not None
        return Policy(self._actor, seed=seed, deterministic=self._options.deterministic, device=self._options.device)


class OnnxFile(PolicyFile):
    """An exported policy."""

    def __init__(self, path: Path, options: ActingOptions) -> None:
        super().__init__(path)
        self._options = options

    def check(self) -> None:
        """See ``PolicyFile``."""
        self.policy(0)

    def check_fit(self, spec: BehaviorSpec) -> None:
        """See ``PolicyFile``."""
        policy = OnnxPolicy(self.path, seed=0, deterministic=self._options.deterministic)
        if misfits := "; ".join(policy.misfits(spec)):
            raise CheckpointError(f"{self.path} is of other agents: {misfits}.")

    def policy(self, seed: int) -> Acts:
        """See ``PolicyFile``."""
        return OnnxPolicy(self.path, seed=seed, deterministic=self._options.deterministic)


@dataclass(frozen=True, slots=True)
class Entrant:
    """One model that takes part.

    Attributes:
        name: as it was given; of ``RUN/*`` with the step behind it.
        policies: behavior -> its file.
        series: the run whose checkpoints these are, for ``RUN/*``.
        steps: it was trained for; None where nothing tells.
    """

    name: str
    policies: Mapping[str, PolicyFile]
    series: str | None = None
    steps: int | None = None

    def file(self, behavior: str, behaviors: Sequence[str]) -> PolicyFile:
        """Return the policy that plays a behavior.

        Args:
            behavior: name, without team.
            behaviors: all of the environment that are known. A single policy that is called like none of them plays
                any.

        Raises:
            CheckpointError: there is none.
        """
        if behavior in self.policies:
            return self.policies[behavior]
        if len(self.policies) == 1 and not self.policies.keys() & set(behaviors):
            return next(iter(self.policies.values()))
        raise CheckpointError(
            f"{self.name} has no policy for the behavior {behavior!r}, only for {', '.join(self.policies)}. Give the "
            "folder of a run that has trained all of them."
        )


def find_entrants(words: Sequence[str], results: Path, options: ActingOptions) -> list[Entrant]:
    """Return the models that are meant, each once.

    Args:
        words: run ids, folders of runs or of their behaviors, ``.pt`` and ``.onnx`` files; with ``/*`` behind it all
            checkpoints of a run or behavior.
        results: the folder where run ids are looked for.
        options: how they act.

    Raises:
        SettingsError: some of them are none, or only one is left. All mistakes are told.
    """
    entrants: dict[tuple[Path, ...], Entrant] = {}
    problems = []
    for word in words:
        try:
            for entrant in _entrants(word, results, options):
                entrants.setdefault(tuple(file.path.resolve() for file in entrant.policies.values()), entrant)
        except TrajtrainerError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    if len(entrants) < _FEWEST:
        raise SettingsError(
            f"A tournament needs at least two models, and this is one: {next(iter(entrants.values())).name}. Give "
            "other runs, checkpoints or .onnx files, too; 'RUN/*' means all checkpoints of a run."
        )
    return list(entrants.values())


def _entrants(word: str, results: Path, options: ActingOptions) -> Iterator[Entrant]:
    path = Path(word)
    if path.name == _ALL:
        for steps, saved in find_checkpoints(path.parent, results):
            yield Entrant(f"{path.parent}/{steps}", _checkpoints(saved, options), str(path.parent), steps)
    elif path.suffix == _MODEL:
        stem = path.stem
        found = _STEP.search(stem)
        model = OnnxFile(path, options)
        model.check()
        yield Entrant(word, {behavior_of(_STEP.sub("", stem)): model}, steps=int(found[1]) if found else None)
    else:
        policies = _checkpoints(find_policies(path, results, None), options)
        yield Entrant(word, policies, steps=next(iter(policies.values())).steps)


def _checkpoints(saved: Sequence[SavedPolicy], options: ActingOptions) -> dict[str, CheckpointPolicy]:
    policies = {behavior_of(each.name): CheckpointPolicy(each, options) for each in saved}
    for policy in policies.values():
        policy.check()
    return policies


def _actions(spec: BehaviorSpec) -> str:
    action = spec.action_spec
    return f"{action.continuous_size} continuous and the branches {list(action.discrete_branches)}"
