"""Fits policies of other trainers to the agents of an environment: what they see, in which order, and what they do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from trajtrainer.commands.importing.onnx_model import PICTURE_RANK, ForeignModel
from trajtrainer.commands.importing.policy import (
    ForeignActor,
    ForeignBody,
    ForeignPolicy,
    Head,
    HeadKind,
    Sensors,
    Statistics,
    Told,
    action_head,
)
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import BehaviorSpec


class MisfitError(CheckpointError):
    """A policy is of other agents than those of the environment, or something is missing to tell."""


def fitted_actor(policy: ForeignPolicy, told: Told, spec: BehaviorSpec) -> ForeignActor:
    """A policy for these agents.

    Raises:
        MisfitError: it belongs to other agents, or something that must be known is missing.
    """
    if policy.statistics is not None and told.statistics is not None:
        raise MisfitError("it contains statistics of its observations. Remove --statistics")
    statistics = policy.statistics or told.statistics
    scale = policy.image_scale
    if scale is not None and told.image_scale not in (None, scale):
        raise MisfitError(f"it says that its pixels are 0 to {scale:g}, not to {told.image_scale:g} (--image-scale)")
    sensors = _sensors(
        spec,
        observed=policy.observed,
        as_picture=policy.sees_pictures,
        scale=told.image_scale if scale is None else scale,
        statistics=statistics,
    )
    body = ForeignBody(sensors, policy.layers).requires_grad_(False)
    shapes = [(1, *map(int, sensor.shape)) for sensor in spec.observation_specs]
    try:
        with torch.inference_mode():
            size = body([torch.zeros(shape) for shape in shapes]).shape[1]
    except RuntimeError as error:
        raise MisfitError(f"its layers do not take {_seen(spec)}: {_what_it_takes(policy)}") from error
    if size != policy.head.layer.in_features:
        raise MisfitError(
            f"its last layer takes {policy.head.layer.in_features} numbers, and those before it give {size}"
        )
    head = _with_bounds(policy.head, told)
    _check_actions(head, spec)
    return ForeignActor(body, action_head(head, spec.action_spec)).requires_grad_(False)


def fitted_sensors(found: ForeignModel, spec: BehaviorSpec) -> Sensors:
    """Return what brings the observations of these agents to a model's input, after a look at its actions.

    Raises:
        MisfitError: it belongs to other agents, or something that must be known is missing.
    """
    actions = spec.action_spec
    if actions.continuous_size and actions.discrete_size:
        raise MisfitError("it has one output, and these agents have continuous and discrete actions")
    if actions.continuous_size and found.told.bounds is None:
        raise MisfitError(_NO_BOUNDS)
    if actions.discrete_size and found.told.scores is None:
        raise MisfitError(
            "it does not say what its outputs for discrete actions are. Give --scores logits if actions were "
            "sampled from them, or --scores values if the best was taken, as in DQN"
            ""
        )
    if found.told.scores is HeadKind.VALUES and actions.discrete_size > 1:
        raise MisfitError(f"values are for a single choice, and these agents make {actions.discrete_size}")
    return _sensors(
        spec,
        observed=found.shape,
        as_picture=found.input_rank == PICTURE_RANK,
        scale=found.told.image_scale,
        statistics=found.told.statistics,
    )


_NO_BOUNDS = (
    "it does not say to which bounds its continuous actions were clipped. Give --clip, such as 1 for a Box of -1 to "
    "1; these "
    "bounds become -1 and 1, which is what agents receive"
)


def _sensors(
    spec: BehaviorSpec,
    *,
    observed: tuple[int, ...] | None,
    as_picture: bool,
    scale: float | None,
    statistics: Statistics | None,
) -> Sensors:
    shapes = [tuple(map(int, sensor.shape)) for sensor in spec.observation_specs]
    numbers = sum(map(math.prod, shapes))
    fitting = [shapes[0], (numbers,)] if len(shapes) == 1 else [(numbers,)]
    if observed is not None and observed not in fitting:
        channels_last = len(observed) == 3 and (observed[2], *observed[:2]) in fitting
        hint = ". Its channels come last; Unity's come first" if channels_last else ""
        raise MisfitError(f"it sees {_shape(observed)}, and these agents send {_seen(spec)}{hint}")
    if as_picture and (len(shapes) > 1 or len(shapes[0]) != 3):
        raise MisfitError(f"it takes one image, and these agents send {_seen(spec)}")
    if not as_picture and len(shapes) > 1 and any(len(shape) > 1 for shape in shapes):
        raise MisfitError(f"it takes a single vector, and these agents send {_seen(spec)}")
    if scale is None and any(len(shape) == 3 for shape in shapes):
        raise MisfitError(
            "it does not say which range pixels had in training. Give --image-scale 1 for 0 to 1, or --image-scale 255"
        )
    if statistics is not None and as_picture:
        raise MisfitError("statistics of images are not supported")
    if statistics is not None and len(statistics.mean) != numbers:
        raise MisfitError(f"the statistics are of {len(statistics.mean)} numbers, and these agents send {_seen(spec)}")
    return Sensors(shapes, as_picture=as_picture, scale=1.0 if scale is None else scale, statistics=statistics)


def _with_bounds(head: Head, told: Told) -> Head:
    """The head with the bounds of its actions, where it needs any."""
    if head.kind is not HeadKind.MEANS:
        return head
    given = told.bounds
    if given is None:
        if head.bounds is None:
            raise MisfitError(_NO_BOUNDS)
        bounds = head.bounds
    else:
        size = head.layer.out_features
        bounds = (torch.full((size,), given[0]), torch.full((size,), given[1]))
        if head.bounds is not None and not all(map(torch.equal, bounds, head.bounds)):
            raise MisfitError(f"it says that its actions are within {_bounds(head.bounds)} (--clip)")
    if any(len(bound) != head.layer.out_features for bound in bounds):
        raise MisfitError(f"it has {head.layer.out_features} actions, and bounds of {len(bounds[0])}")
    return replace(head, bounds=bounds)


def _bounds(bounds: tuple[torch.Tensor, torch.Tensor]) -> str:
    return " and ".join(str([round(float(number), 6) for number in bound]) for bound in bounds)


def _check_actions(head: Head, spec: BehaviorSpec) -> None:
    actions, size = spec.action_spec, head.layer.out_features
    branches = tuple(map(int, actions.discrete_branches))
    there = f"{actions.continuous_size} continuous actions and the branches {list(branches)}"
    if head.kind in (HeadKind.MEANS, HeadKind.SQUASHED):
        if branches or size != actions.continuous_size:
            raise MisfitError(f"it has {size} continuous actions, and these agents have {there}")
        return
    if actions.continuous_size or size != sum(branches) or head.branches not in (None, branches):
        own = f"branches {list(head.branches)}" if head.branches else f"branches with {size} choices in total"
        raise MisfitError(f"it has {own}, and these agents have {there}")
    if head.kind is HeadKind.VALUES and len(branches) > 1:
        raise MisfitError(f"it chooses among {size} actions, and these agents have {there}")


def _what_it_takes(policy: ForeignPolicy) -> str:
    first = policy.layers[0]
    if policy.sees_pictures:
        return f"the first is a convolution of {first.in_channels} channels"
    return f"the first takes {first.in_features} numbers"


def _shape(shape: Sequence[int]) -> str:
    return f"{shape[0]} numbers" if len(shape) == 1 else f"the shape {tuple(shape)}"


def _seen(spec: BehaviorSpec) -> str:
    return ", ".join(f"{sensor.name!r} {tuple(map(int, sensor.shape))}" for sensor in spec.observation_specs)
