"""Models to act with: runs, checkpoints and exported policies, as they are named on the command line."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch

from trajtrainer.core.errors import CheckpointError, SettingsError, TrajtrainerError
from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, mismatches, sensors_seen, with_sensors
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import STEP, STEP_ENTRY
from trajtrainer.policies.checkpoints.policy_record import read_record
from trajtrainer.policies.checkpoints.recovered_policy import recover_policy
from trajtrainer.policies.checkpoints.saved_policies import SavedPolicy, find_checkpoints, find_policies
from trajtrainer.policies.folder.run_folder import behavior_exported_as
from trajtrainer.policies.onnx.policy import OnnxPolicy
from trajtrainer.policies.play.scripted import heuristic_policy, random_policy

_ALL = "*"
_MODEL = ".onnx"
_STEP = re.compile(r"-(\d{1,18})$")
RANDOM, HEURISTIC = "random", "heuristic"
SCRIPTED = (RANDOM, HEURISTIC)
"""Words for policies that no one has trained."""
_SAME_FILE = "best"  # best.onnx lies in the folder of its behavior


@dataclass(frozen=True, slots=True)
class ActingOptions:
    """How policies act.

    Attributes:
        deterministic: use the mean and the most likely branch instead of sampling.
        device: on which policies of checkpoints compute.
        by_name: let policies of checkpoints act among agents that have more sensors than theirs had, by the names of
            these, as students do in any case.
    """

    deterministic: bool = False
    device: torch.device | str = "cpu"
    by_name: bool = False


class MakesPolicy(Protocol):
    """Makes policies of a file, each with random numbers of its own from ``seed``; None for what the options say."""

    def __call__(self, seed: int, *, deterministic: bool | None = None) -> Policy: ...


class Loaded(NamedTuple):
    """The content of a file: what its agents see and do, and its policy for them."""

    spec: BehaviorSpec
    policy: MakesPolicy


class PolicyFile(ABC):
    """One file with the policy of one behavior."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        """Load it for agents that see and do this, or if None, for those that the file describes.

        A student fits agents that have more sensors than it sees.

        Raises:
            TrajtrainerError: it is of other agents, or does not say enough about its own.
        """

    def _check_fits(self, reasons: Iterator[str]) -> None:
        if found := "; ".join(reasons):
            raise CheckpointError(f"{self.path} is of other agents: {found}.")


class CheckpointPolicy(PolicyFile):
    """The policy of a checkpoint, ours or of ML-Agents.

    Raises:
        CheckpointError: the file cannot be read.
    """

    def __init__(self, saved: SavedPolicy, options: ActingOptions) -> None:
        super().__init__(saved.checkpoint)
        self._models = saved.models
        self._options = options
        self.steps: int | None = None
        content = read_checkpoint(self.path)
        with contextlib.suppress(KeyError, TypeError, ValueError, RuntimeError):
            self.steps = int(content[STEP][STEP_ENTRY])

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        content, source = read_checkpoint(self.path), str(self.path)
        if agents is None:
            found = recover_policy(content, source=source, models=self._models)
        else:
            # What the agents see is what the environment says: ML-Agents' files do not.
            sees, seen = None, agents
            if (record := read_record(content, source)) is not None:
                if record.student or self._options.by_name:
                    sees = sensors_seen(record.spec, agents)
                    seen = with_sensors(agents, sees)
                self._check_fits(mismatches(record.spec, seen))
            found = recover_policy(content, source=source, sensors=seen.observation_specs)
            self._check_fits(mismatches(found.spec, seen))
            found.actor.sees = sees

        def policy(seed: int, *, deterministic: bool | None = None) -> Policy:
            chosen = self._options.deterministic if deterministic is None else deterministic
            return ActorPolicy(found.actor, seed=seed, deterministic=chosen, device=self._options.device)

        return Loaded(found.spec, policy)


class OnnxFile(PolicyFile):
    """An exported policy.

    Raises:
        TrajtrainerError: it cannot act.
    """

    def __init__(self, path: Path, options: ActingOptions) -> None:
        super().__init__(path)
        self._options = options
        self._policy(0)

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        if agents is None:
            return Loaded(OnnxPolicy(self.path, seed=0).spec(), self._policy)
        self._check_fits(self._policy(0).mismatches(agents))
        return Loaded(agents, self._policy)

    def _policy(self, seed: int, *, deterministic: bool | None = None) -> OnnxPolicy:
        chosen = self._options.deterministic if deterministic is None else deterministic
        return OnnxPolicy(self.path, seed=seed, deterministic=chosen)


class ScriptedFile(PolicyFile):
    """A policy that no one has trained, for one behavior. There is no file."""

    def __init__(self, word: str, behavior: str) -> None:
        super().__init__(Path(word))
        self._behavior = behavior

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        if agents is None:
            raise CheckpointError(
                f"{self.path} is a policy for any agents, so it has no observations and actions of its own."
            )
        heuristic = heuristic_policy(self._behavior, agents) if self.path.name == HEURISTIC else None
        # It acts in its own way, whatever ``deterministic`` says.
        return Loaded(agents, lambda seed, *, deterministic=None: heuristic or random_policy(agents, seed))  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class Model:
    """One policy, or one for each behavior of a run.

    Attributes:
        name: as it was given; for ``RUN/*`` followed by the step.
        policies: behavior -> its file.
        series: the run whose checkpoints these are, for ``RUN/*``.
        steps: that it was trained for; None if unknown.
        scripted: no one has trained it, and it plays every behavior; ``policies`` are those of the behaviors so far.
    """

    name: str
    policies: Mapping[str, PolicyFile]
    series: str | None = None
    steps: int | None = None
    scripted: bool = False

    def plays(self, behavior: str, behaviors: Collection[str]) -> bool:
        """Whether there is a policy for a behavior.

        Args:
            behavior: name, without team.
            behaviors: all known ones of the environment. A single policy whose name is none of them plays any.
        """
        plays_any = self.scripted or (len(self.policies) == 1 and not self.policies.keys() & set(behaviors))
        return plays_any or behavior in self.policies

    def file(self, behavior: str, behaviors: Collection[str]) -> PolicyFile:
        """The policy that plays a behavior; arguments as ``plays``.

        Raises:
            CheckpointError: there is none.
        """
        if self.scripted:
            assert isinstance(self.policies, dict)
            found: PolicyFile = self.policies.setdefault(behavior, ScriptedFile(self.name, behavior))
            return found
        if self.plays(behavior, behaviors):
            return self.policies.get(behavior) or next(iter(self.policies.values()))
        raise CheckpointError(
            f"{self.name} has no policy for the behavior {behavior!r}, only for {', '.join(self.policies)}. Give the "
            "folder of a run that has trained all of them."
        )


class Roles:
    """The behaviors of an environment, as it announces them, and every model's policy for each.

    Args:
        models: each must be able to play all of them.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._behaviors: list[str] = []
        self._loaded: dict[tuple[int, str], Loaded] = {}

    def announce(self, specs: Mapping[str, BehaviorSpec]) -> None:
        """Check that every model can play the behaviors that an environment announces.

        Args:
            specs: by behavior id.

        Raises:
            SettingsError: some cannot; it names all of them, with the reasons.
        """
        new = {BehaviorId.parse(id_).name: spec for id_, spec in specs.items()}
        new = {name: spec for name, spec in new.items() if name not in self._behaviors}
        self._behaviors += new
        problems = []
        for name, spec in new.items():
            for number, model in enumerate(self._models):
                try:
                    self._loaded[number, name] = model.file(name, self._behaviors).load(spec)
                except TrajtrainerError as error:
                    problems.append(f"{model.name} cannot play {name!r}: {error}")
        if problems:
            raise SettingsError("\n".join(problems))

    def policy(self, model: int, behavior: str, seed: int) -> Policy:
        """Make the policy of a model for a behavior that was announced, with random numbers of its own."""
        return self._loaded[model, behavior].policy(seed)


def find_models(words: Sequence[str], results: Path, options: ActingOptions, *, scripted: bool = False) -> list[Model]:
    """Find models, in the order of the words.

    Args:
        words: run ids, folders of runs or of their behaviors, ``.pt`` and ``.onnx`` files; with ``@best`` after a run
            or behavior its best checkpoint, with ``/*`` all of them.
        results: the folder that contains the runs.
        options: how they act.
        scripted: accept the words ``SCRIPTED``.

    Raises:
        SettingsError: some words match no model; all mistakes are reported.
    """
    models: list[Model] = []
    problems = []
    for word in words:
        if scripted and word in SCRIPTED:
            models.append(Model(word, {}, scripted=True))
            continue
        try:
            models += _models(word, results, options)
        except TrajtrainerError as error:
            problems.append(str(error))
    if problems:
        raise SettingsError("\n".join(problems))
    return models


def file_of(word: str, results: Path) -> Path:
    """The first file that a word of ``find_models`` stands for, unread.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(word)
    if path.suffix == _MODEL:
        return path
    if path.name == _ALL:
        _, saved = find_checkpoints(path.parent, results)[0]
    else:
        saved = find_policies(path, results, None)
    return saved[0].checkpoint


def _models(word: str, results: Path, options: ActingOptions) -> Iterator[Model]:
    path = Path(word)
    if path.name == _ALL:
        for steps, saved in find_checkpoints(path.parent, results):
            yield Model(f"{path.parent}/{steps}", _checkpoints(saved, options), str(path.parent), steps)
    elif path.suffix == _MODEL:
        model = OnnxFile(path, options)
        stem, step = _STEP.sub("", path.stem), _STEP.search(path.stem)
        if stem == _SAME_FILE:
            behavior = behavior_of(path.absolute().parent.name)
        else:
            behavior = behavior_exported_as(path.with_name(f"{stem}{_MODEL}"))
        yield Model(word, {behavior: model}, steps=int(step[1]) if step else None)
    else:
        policies = _checkpoints(find_policies(path, results, None), options)
        yield Model(word, policies, steps=next(iter(policies.values())).steps)


def _checkpoints(saved: Sequence[SavedPolicy], options: ActingOptions) -> dict[str, CheckpointPolicy]:
    return {behavior_of(each.name): CheckpointPolicy(each, options) for each in saved}
