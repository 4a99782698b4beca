"""Taking what fits out of a checkpoint of ML-Agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trajtrainer.checkpoints.mlagents.layout import (
    CRITIC,
    ENTROPY_OPTIMIZER,
    EXTRA,
    POLICY,
    STEP,
    STEP_ENTRY,
    Entry,
    Layout,
    parameter_indices,
    shares_critic,
)
from trajtrainer.checkpoints.mlagents.names import CONSTANTS, second_name
from trajtrainer.checkpoints.mlagents.optimizer import MisfitError, adam_from_mlagents

_MISSING = "missing (kept as initialised)"
_MISFITTING = "not fitting (kept as initialised)"
_UNUSED = "not used"


class Reader:
    """Takes what fits out of a checkpoint and remembers what does not match."""

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = checkpoint
        self._used: set[tuple[str, str]] = set()
        self.differences: dict[str, list[str]] = {}

    def note(self, what: str, name: str) -> None:
        """Note a difference, once per name."""
        names = self.differences.setdefault(what, [])
        if name not in names:
            names.append(name)

    def keep_differences_of(self, network: str) -> None:
        """Forget the differences of everything but one network."""
        kept = {
            what: [name for name in names if name.split("/")[0] == network] for what, names in self.differences.items()
        }
        self.differences = {what: names for what, names in kept.items() if names}

    def describe(self) -> str:
        """Return the differences in words."""
        return "; ".join(f"{what}: {', '.join(names)}" for what, names in self.differences.items())

    def value(self, entry: Entry, like: Tensor) -> Tensor | None:
        """Return an entry as a tensor like ``like``; None where it is missing or does not fit."""
        parts = [
            self._tensor(entry.network, name, shape, like)
            for name, shape in zip(entry.key.names, entry.key.shapes(like), strict=True)
        ]
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts):
            return None
        return whole[0] if len(whole) == 1 else torch.cat(whole)

    def _tensor(self, network: str, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        entries = self._checkpoint.get(network)
        if not isinstance(entries, Mapping):
            self.note(_MISSING, network)
            return None
        second = second_name(name)
        found = name if name in entries else second if second in entries else None
        if found is None:
            self.note(_MISSING, f"{network}/{name}")
            return None
        self._used.add((network, found))
        value = entries[found]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            held = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            self.note(_MISFITTING, f"{network}/{name} ({held}, expected shape {shape})")
            return None
        return value.detach().to(like.device, like.dtype, copy=True)

    def adam(
        self,
        layout: Layout,
        ours: str,
        taken: set[Entry],
        modules: Mapping[str, Mapping[str, Tensor]],
        like: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the state of one of our Adams."""
        optimizer, entries = layout.optimizers[ours], layout.optimized(ours)
        if optimizer.key not in self._checkpoint:
            self.note(_MISSING, optimizer.key)
            return like
        order = optimizer.networks
        if not layout.sac:
            order = (POLICY,) if shares_critic(self._checkpoint) else (POLICY, CRITIC)
        index = parameter_indices(self._checkpoint, order)
        sources = [
            [index[entry.network, name] for name in entry.key.names]
            if entry in taken and all((entry.network, name) in index for name in entry.key.names)
            else None
            for entry in entries
        ]
        shapes = [entry.key.shapes(modules[entry.module][entry.ours]) for entry in entries]
        try:
            return adam_from_mlagents(self._checkpoint[optimizer.key], sources, shapes, len(index), like)
        except MisfitError as error:
            self.note(_MISFITTING, f"{optimizer.key} ({error})")
            return like

    def entropy_adam(self, like: dict[str, Any]) -> dict[str, Any]:
        """Return the state of the Adam of SAC's entropy coefficients."""
        state = self._checkpoint.get(ENTROPY_OPTIMIZER)
        count = len(like["param_groups"][0]["params"])
        try:
            if state is None:
                self.note(_MISSING, ENTROPY_OPTIMIZER)
                return like
            shapes = {i: entry["exp_avg"].shape for i, entry in state["state"].items()}
            sources = [[i] if i in shapes else None for i in range(count)]
            sizes = [[tuple(shapes.get(i, ()))] for i in range(count)]
            return adam_from_mlagents(state, sources, sizes, count, like)
        except (MisfitError, KeyError, TypeError, AttributeError) as error:
            self.note(_MISFITTING, f"{ENTROPY_OPTIMIZER} ({error})")
            return like

    def step(self) -> int:
        """Return the step of the checkpoint."""
        try:
            return int(self._checkpoint[STEP][STEP_ENTRY])
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError):
            self.note(_MISSING, STEP)
            return 0

    def find_unused(self, layout: Layout) -> None:
        """Name what is in the checkpoint and has no place in the networks."""
        optimizers = {optimizer.key for optimizer in layout.optimizers.values()}
        whole = optimizers | {STEP, EXTRA} | ({ENTROPY_OPTIMIZER} if layout.sac else set())
        if layout.shared and shares_critic(self._checkpoint):
            whole.add(CRITIC)  # a copy of the policy
        touched = {network for network, _ in self._used}
        for key, entries in self._checkpoint.items():
            if key in whole:
                continue
            if key not in touched:
                if not (isinstance(entries, Mapping) and not entries):
                    self.note(_UNUSED, str(key))
                continue
            known = {name for network, name in self._used if network == key}
            known |= {second for name in entries if (second := second_name(str(name)))}
            known |= set(CONSTANTS)
            for name in entries:
                if name not in known:
                    self.note(_UNUSED, f"{key}/{name}")
