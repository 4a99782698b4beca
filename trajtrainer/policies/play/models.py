"""Models that can act: runs, checkpoints and exported policies, as specified on the command line."""

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
from trajtrainer.policies.folder.run_folder import behavior_exported_as
from trajtrainer.policies.folder.saved_policies import (
    ALL_CHECKPOINTS,
    HEURISTIC,
    SCRIPTED,
    SavedPolicy,
    find_checkpoints,
    find_policies,
)
from trajtrainer.policies.onnx.policy import OnnxPolicy
from trajtrainer.policies.play.scripted import heuristic_policy, random_policy

_MODEL = ".onnx"
_STEP = re.compile(r"-(\d{1,18})$")
_SAME_FILE = "best"  # Every behavior's best policy is called best.onnx; the folder has the name of the behavior.


@dataclass(frozen=True, slots=True)
class ActingOptions:
    """Options for how policies act.

    Attributes:
        deterministic: use the mean and the most likely discrete actions instead of sampling.
        device: device on which policies from checkpoints run.
        by_name: let policies from checkpoints control agents with more sensors than in training, by matching the
            sensors' names. Students always do this.
    """

    deterministic: bool = False
    device: torch.device | str = "cpu"
    by_name: bool = False


class MakesPolicy(Protocol):
    """Creates policies from a file, each with its own random seed. By default, the options set ``deterministic``."""

    def __call__(self, seed: int, *, deterministic: bool | None = None) -> Policy: ...


class Loaded(NamedTuple):
    """The content of a policy file: the observations and actions of its agents, and a factory for its policy."""

    spec: BehaviorSpec
    policy: MakesPolicy


class PolicyFile(ABC):
    """A file with the policy of one behavior.

    Attributes:
        path: path of the file.
        steps: number of training steps, if the file contains it.
    """

    steps: int | None = None

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        """Load the policy for the given agents; if ``agents`` is None, for those described in the file.

        A student also accepts agents that have more sensors than it sees.

        Raises:
            TrajtrainerError: the policy is for other agents, or the file does not fully describe its agents.
        """

    def _check_fits(self, reasons: Iterator[str]) -> None:
        if found := "; ".join(reasons):
            raise CheckpointError(f"{self.path} is a policy for different agents: {found}.")


class CheckpointPolicy(PolicyFile):
    """The policy in a checkpoint of trajtrainer or ML-Agents.

    Raises:
        CheckpointError: the file cannot be read.
    """

    def __init__(self, saved: SavedPolicy, options: ActingOptions) -> None:
        super().__init__(saved.checkpoint)
        self._models = saved.models
        self._options = options
        content = read_checkpoint(self.path)
        with contextlib.suppress(KeyError, TypeError, ValueError, RuntimeError):
            self.steps = int(content[STEP][STEP_ENTRY])

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        content, source = read_checkpoint(self.path), str(self.path)
        if agents is None:
            found = recover_policy(content, source=source, models=self._models)
        else:
            # ML-Agents' files do not describe the sensors, so take them from the environment.
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
        TrajtrainerError: the model cannot be used.
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
    """An untrained policy for one behavior, which has no actual file."""

    def __init__(self, word: str, behavior: str) -> None:
        super().__init__(Path(word))
        self._behavior = behavior

    def load(self, agents: BehaviorSpec | None = None) -> Loaded:
        if agents is None:
            raise CheckpointError(
                f"{self.path} works for any agents, so it does not define their observations and actions."
            )
        heuristic = heuristic_policy(self._behavior, agents) if self.path.name == HEURISTIC else None
        # Scripted policies do not depend on ``deterministic``.
        return Loaded(agents, lambda seed, *, deterministic=None: heuristic or random_policy(agents, seed))  # noqa: ARG005


@dataclass(frozen=True, slots=True)
class Model:
    """A single policy, or one policy for each behavior of a run.

    Attributes:
        name: name given by the user; for ``RUN/*``, the run followed by the step.
        policies: policy file of each behavior.
        series: for ``RUN/*``, the run that the checkpoint is from.
        steps: number of training steps; None if unknown.
        scripted: True if the policy was not trained and plays every behavior. In this case, ``policies`` contains the
            behaviors that it has played so far.
    """

    name: str
    policies: dict[str, PolicyFile]
    series: str | None = None
    steps: int | None = None
    scripted: bool = False

    def plays(self, behavior: str, behaviors: Collection[str]) -> bool:
        """Return whether there is a policy for a behavior.

        Args:
            behavior: name of the behavior without the team.
            behaviors: all known behaviors of the environment. If a model has only one policy and its name is not among
                these, the policy plays any behavior.
        """
        plays_any = self.scripted or (len(self.policies) == 1 and not self.policies.keys() & set(behaviors))
        return plays_any or behavior in self.policies

    def file(self, behavior: str, behaviors: Collection[str]) -> PolicyFile:
        """Return the file of the policy that plays a behavior. The arguments are those of ``plays``.

        Raises:
            CheckpointError: there is no policy for the behavior.
        """
        if self.scripted:
            return self.policies.setdefault(behavior, ScriptedFile(self.name, behavior))
        if self.plays(behavior, behaviors):
            return self.policies.get(behavior) or next(iter(self.policies.values()))
        raise CheckpointError(
            f"{self.name} has no policy for the behavior {behavior!r}, only for {', '.join(self.policies)}. Pass the "
            "folder of a run that has trained all of them."
        )


class Roles:
    """The behaviors that an environment announces, with the policy of every model for each of them.

    Args:
        models: the models, each of which must be able to play all behaviors.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models
        self._behaviors: list[str] = []
        self._loaded: dict[tuple[int, str], Loaded] = {}

    def announce(self, specs: Mapping[str, BehaviorSpec]) -> None:
        """Check that every model can play the behaviors that an environment announces.

        Args:
            specs: specs by behavior id.

        Raises:
            SettingsError: some models cannot play a behavior; the message lists all of them with the reasons.
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
        """Create the policy of a model for an announced behavior, with its own random seed."""
        return self._loaded[model, behavior].policy(seed)


def find_models(words: Sequence[str], results: Path, options: ActingOptions, *, scripted: bool = False) -> list[Model]:
    """Find models in the order of the words.

    Args:
        words: run ids, folders of runs or of their behaviors, and ``.pt`` and ``.onnx`` files. A run or behavior
            followed by ``@best`` means its best checkpoint, followed by ``/*`` all of its checkpoints.
        results: the folder that contains the runs.
        options: options for how the models act.
        scripted: also accept the words in ``SCRIPTED``.

    Raises:
        SettingsError: some words match no model; the message contains all errors.
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


def _models(word: str, results: Path, options: ActingOptions) -> Iterator[Model]:
    path = Path(word)
    if path.name == ALL_CHECKPOINTS:
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


def _checkpoints(saved: Sequence[SavedPolicy], options: ActingOptions) -> dict[str, PolicyFile]:
    return {behavior_of(each.name): CheckpointPolicy(each, options) for each in saved}
