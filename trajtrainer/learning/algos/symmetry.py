"""Symmetry augmentation (Mittal et al. 2024, arXiv:2403.04359): also learning from the mirror image of each step.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from trajtrainer.core.columns import NEXT_MASK, NEXT_OBSERVATIONS, OBSERVATIONS, Columns, sensor_name
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.settings.symmetry import MirrorSettings, SymmetrySettings

Mirror = Callable[[Tensor], Tensor]


class Symmetry:
    """Appends the mirror images of a minibatch's rows.

    Observations and actions are mirrored. Rewards, returns and advantages are copied. As in rsl_rl, the
    log-probabilities at collection time are copied, too, as if the policy that acted had been symmetric.

    Raises:
        UnsupportedError: the settings do not fit the agents' observations or actions.
    """

    def __init__(self, settings: SymmetrySettings, spec: BehaviorSpec, device: torch.device) -> None:
        mismatches = [*_mismatches_of_observations(settings, spec), *_mismatches_of_actions(settings, spec)]
        if mismatches:
            raise UnsupportedError(f"symmetry does not fit the behavior: {'; '.join(mismatches)}.")
        size, sizes = int(spec.action_spec.continuous_size), list(spec.action_spec.discrete_branches)
        continuous, branches = settings.continuous_actions, settings.branches or list(range(len(sizes)))
        actions = settings.discrete_actions or [list(range(branch)) for branch in sizes]

        # Column (k, actions[k][a]) of the mirrored mask comes from action a in the branch swapped with branch k.
        starts = [sum(sizes[:k]) for k in range(len(sizes))]
        columns, table = list(range(sum(sizes))), torch.zeros(len(sizes), max(sizes, default=0), dtype=torch.int64)
        for k, becomes in enumerate(actions):
            table[k, : len(becomes)] = torch.tensor(becomes)
            for action, mirrored in enumerate(becomes):
                columns[starts[k] + mirrored] = starts[branches[k]] + action
        source, table = torch.tensor(branches, dtype=torch.int64, device=device), table.to(device)
        of_mask = _taken(columns, device)
        self._mirrors: dict[str, Mirror] = {
            "continuous": _signed(continuous, size, device),
            "discrete": lambda discrete: table[torch.arange(len(source), device=device), discrete[:, source]],
            "mask": of_mask,
            NEXT_MASK: of_mask,
            "log_prob": _taken([*(continuous.indices or range(size)), *(size + k for k in branches)], device),
            # A mirror image gets another row's noise, so that its action is sampled independently of the original's.
            "noise": partial(torch.roll, shifts=1, dims=0),
            "next_noise": partial(torch.roll, shifts=1, dims=0),
        }
        for sensor, mirror in _by_number(settings, spec).items():
            width = int(spec.observation_specs[sensor].shape[0])
            for kind in (OBSERVATIONS, NEXT_OBSERVATIONS):
                self._mirrors[sensor_name(sensor, kind)] = _signed(mirror, width, device)

    def __call__(self, minibatch: Minibatch) -> Minibatch:
        rows = {
            name: torch.cat((column, self._mirrors[name](column) if name in self._mirrors else column))
            for name, column in minibatch.rows.items()
        }
        return replace(minibatch, rows=Columns(rows), mirrored=True)


def _taken(columns: list[int], device: torch.device) -> Mirror:
    return partial(torch.index_select, dim=1, index=torch.tensor(columns, dtype=torch.int64, device=device))


def _signed(mirror: MirrorSettings, size: int, device: torch.device) -> Mirror:
    taken = _taken(mirror.indices or list(range(size)), device)
    signs = torch.tensor(mirror.signs or [1] * size, dtype=torch.float32, device=device)
    return lambda numbers: taken(numbers) * signs


def _by_number(settings: SymmetrySettings, spec: BehaviorSpec) -> dict[int, MirrorSettings]:
    names = [str(sensor.name) for sensor in spec.observation_specs]
    return {
        i: mirror
        for key, mirror in settings.observations.items()
        for i, name in enumerate(names)
        if key in (name, str(i))
    }


def _mismatches_of_observations(settings: SymmetrySettings, spec: BehaviorSpec) -> Iterator[str]:
    names = [str(sensor.name) for sensor in spec.observation_specs]
    for i, sensor in enumerate(spec.observation_specs):
        if observation_kind(sensor) is not ObservationKind.VECTOR:
            yield f"sensor {i} {names[i]!r} has the shape {tuple(sensor.shape)}, but only vectors can be mirrored"
    numbers = [str(i) for i in range(len(names))]
    for key in settings.observations:
        if key not in names and key not in numbers:
            known = ", ".join(f"{i} {name!r}" for i, name in enumerate(names))
            yield f"observations names {key!r}, but the sensors are {known}"
    for i, mirror in _by_number(settings, spec).items():
        yield from _mismatches_of_size(f"sensor {i} {names[i]!r}", mirror.size, int(spec.observation_specs[i].shape[0]))


def _mismatches_of_actions(settings: SymmetrySettings, spec: BehaviorSpec) -> Iterator[str]:
    action = spec.action_spec
    yield from _mismatches_of_size("continuous_actions", settings.continuous_actions.size, int(action.continuous_size))
    sizes, given = list(action.discrete_branches), [len(branch) for branch in settings.discrete_actions]
    if given and given != sizes:
        yield f"discrete_actions has branches of {given} actions, but the agents have branches of {sizes}"
    yield from _mismatches_of_size("branches", len(settings.branches), len(sizes))
    if len(settings.branches) == len(sizes) and [sizes[k] for k in settings.branches] != sizes:
        yield f"branches swaps branches of different sizes, {sizes}"


def _mismatches_of_size(what: str, found: int, expected: int) -> Iterator[str]:
    if found not in (0, expected):
        yield f"{what} has {expected} numbers, but {found} are listed"
