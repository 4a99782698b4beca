"""Adam's state, ours <-> ML-Agents': the same numbers under other indices.

Both are what ``torch.optim.Adam.state_dict`` gives: moments by the index of a parameter. ML-Agents' indices also count
the constants of its policy, and its branches are separate parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

AdamState = dict[str, Any]
_MOMENTS = ("exp_avg", "exp_avg_sq")
# What ML-Agents' torch 2.1 writes beside the learning rate and betas. Our fused Adam is none of its business.
_MLAGENTS_GROUP = {
    "amsgrad": False,
    "maximize": False,
    "foreach": None,
    "capturable": False,
    "differentiable": False,
    "fused": None,
}
_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay")


class MisfitError(ValueError):
    """An optimizer's state does not belong to these networks."""


def adam_to_mlagents(
    state: AdamState, theirs: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], count: int
) -> AdamState:
    """Return our Adam's state as ML-Agents'.

    Args:
        state: ours, over n parameters.
        theirs: for each of the n ML-Agents' indices, several where our parameter is several of its own side by side.
        rows: for each of the n the first dimension of each of several.
        count: parameters that ML-Agents' Adam has.
    """
    moments: dict[int, dict[str, Any]] = {}
    for index, ours in state["state"].items():
        parts = (
            {name: ours[name].split_with_sizes(list(rows[index])) for name in _MOMENTS}
            if len(theirs[index]) > 1
            else {}
        )
        for part, target in enumerate(theirs[index]):
            own = {name: (parts[name][part] if parts else ours[name]).clone() for name in _MOMENTS}
            moments[target] = {"step": torch.as_tensor(ours["step"], dtype=torch.float32).clone(), **own}
    return {
        "state": dict(sorted(moments.items())),
        "param_groups": [group_for_mlagents(state["param_groups"][0], count)],
    }


def group_for_mlagents(group: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return one parameter group as ML-Agents writes it."""
    return {key: group[key] for key in _GROUP_KEYS} | _MLAGENTS_GROUP | {"params": list(range(count))}


def adam_from_mlagents(
    state: Any,
    theirs: Sequence[Sequence[int] | None],
    shapes: Sequence[Sequence[tuple[int, ...]]],
    count: int,
    like: AdamState,
) -> AdamState:
    """Return ML-Agents' Adam's state as ours. Moments of parameters that are None in ``theirs`` are left out.

    Args:
        state: ML-Agents', as read from a file.
        theirs: for each of our parameters ML-Agents' indices, or None where its weights were not taken over.
        shapes: for each of our parameters the shapes of ML-Agents'.
        count: parameters that ML-Agents' Adam should have.
        like: our fresh Adam's state; its settings that are no hyperparameters (``fused`` ...) stay.

    Raises:
        MisfitError: it is not an Adam's state over these parameters.
    """
    try:
        (group,) = state["param_groups"]
        entries = state["state"]
        if len(group["params"]) != count:
            raise MisfitError(f"it is over {len(group['params'])} parameters, expected {count}")
        moments = {}
        for index, (sources, sizes) in enumerate(zip(theirs, shapes, strict=True)):
            if sources is not None and all(source in entries for source in sources):
                moments[index] = _gathered([entries[source] for source in sources], sizes)
        settings = {key: group[key] for key in _GROUP_KEYS}
        return {"state": moments, "param_groups": [{**like["param_groups"][0], **settings}]}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, MisfitError):
            raise
        raise MisfitError(f"it is no state of Adam ({type(error).__name__}: {error})") from error


def _gathered(sources: Sequence[Mapping[str, Any]], shapes: Sequence[tuple[int, ...]]) -> dict[str, Tensor]:
    for source, shape in zip(sources, shapes, strict=True):
        for name in _MOMENTS:
            if tuple(source[name].shape) != shape:
                raise MisfitError(f"{name} has shape {tuple(source[name].shape)}, expected {tuple(shape)}")
    gathered = {name: torch.cat([source[name].float() for source in sources]) for name in _MOMENTS}
    return {"step": torch.as_tensor(sources[0]["step"], dtype=torch.float32).reshape(()).clone(), **gathered}
