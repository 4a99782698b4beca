"""Fits policies of other trainers to the agents of an environment: their observations, sensor order and actions.

Some policies can also be converted to a run of trajtrainer, which new training can start from.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from attrs import evolve
from torch import nn

from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, ObservationSpec, observation_kind
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import Mlp
from trajtrainer.learning.nn.init import seeded
from trajtrainer.policies.checkpoints.manager import CheckpointManager
from trajtrainer.policies.checkpoints.policy_record import PolicyRecord, checkpoint_of_policy
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.network import Activation, ConditioningType, NetworkSettings
from trajtrainer.settings.run import CheckpointSettings, RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump
from trajtrainer.tools.importing import policy as foreign
from trajtrainer.tools.importing.onnx_model import ForeignModel
from trajtrainer.tools.importing.policy import (
    ForeignActor,
    ForeignPolicy,
    Head,
    HeadKind,
    Hints,
    ObservationStatistics,
    Part,
    Sensors,
)

_NO_BOUNDS = (
    "it does not say to which bounds its continuous actions were clipped. Pass --clip, such as 1 for a Box of -1 to 1; "
    "these bounds are rescaled to -1 and 1, the range of the actions that agents receive"
)
IMPORTED = "imported"
"""``trainer_type`` in the record of an imported policy, which has no other training state."""
_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.SiLU: Activation.SWISH,
    nn.Tanh: Activation.TANH,
    nn.ReLU: Activation.RELU,
}


class MismatchError(CheckpointError):
    """A policy does not match the agents of the environment, or required information is missing."""


def fitted_actor(policy: ForeignPolicy, hints: Hints, spec: BehaviorSpec) -> ForeignActor:
    """Fit a policy to these agents.

    Raises:
        MismatchError: the policy does not match the agents, or required information is missing.
    """
    if policy.statistics is not None and hints.statistics is not None:
        raise MismatchError("it contains statistics of its observations. Remove --statistics")
    hints = replace(hints, statistics=policy.statistics or hints.statistics)
    body = foreign.ForeignBody(_fitted_parts(policy.parts, hints, spec), policy.layers).requires_grad_(False)
    shapes = [(1, *map(int, sensor.shape)) for sensor in spec.observation_specs]
    try:
        with torch.inference_mode():
            size = body([torch.zeros(shape) for shape in shapes]).shape[1]
    except RuntimeError as error:
        first = next(layer for layer in body.modules() if isinstance(layer, nn.Linear | nn.Conv2d))
        wanted = (
            f"the first layer expects {first.in_features} numbers"
            if isinstance(first, nn.Linear)
            else f"the first layer is a convolution of {first.in_channels} channels"
        )
        raise MismatchError(f"its layers do not accept {_seen(spec.observation_specs)}: {wanted}") from error
    if size != policy.head.layer.in_features:
        raise MismatchError(
            f"its last layer expects {policy.head.layer.in_features} numbers, but the layers before it output {size}"
        )
    head = _with_bounds(policy.head, hints)
    _check_actions(head, spec)
    return ForeignActor(body, foreign.action_head(head, spec.action_spec)).requires_grad_(False)


def _fitted_parts(parts: Sequence[Part], hints: Hints, spec: BehaviorSpec) -> list[Sensors]:
    """Match each part with the sensor of the same name. A single part matches a single sensor, whatever its name is."""
    sensors, names = spec.observation_specs, [str(part.name) for part in parts]
    if parts[0].name is None:
        return [_sensors(parts[0], spec, range(len(sensors)), hints)]
    if hints.statistics is not None:
        raise MismatchError("statistics of a Dict of observations are not supported. Remove --statistics")
    found = names if len(names) == len(sensors) == 1 else [sensor.name for sensor in sensors]
    if sorted(found) != sorted(names):
        raise MismatchError(f"it expects {', '.join(map(repr, names))}, but these agents send {_seen(sensors)}")
    return [_sensors(part, spec, [found.index(name)], hints) for name, part in zip(names, parts, strict=True)]


def fitted_sensors(found: ForeignModel, spec: BehaviorSpec) -> Sensors:
    """Convert the observations of these agents to a model's input. Also check the actions.

    Raises:
        MismatchError: the model does not match the agents, or required information is missing.
    """
    actions = spec.action_spec
    if actions.continuous_size and actions.discrete_size:
        raise MismatchError("it has one output, but these agents have continuous and discrete actions")
    if actions.continuous_size and found.hints.bounds is None:
        raise MismatchError(_NO_BOUNDS)
    if actions.discrete_size and found.hints.scores is None:
        raise MismatchError(
            "it does not say what its outputs for discrete actions are. Pass --scores logits if actions were "
            "sampled from them, or --scores values if the best was taken, as in DQN"
        )
    if found.hints.scores is HeadKind.VALUES and actions.discrete_size > 1:
        raise MismatchError(f"--scores values supports only one branch, but these agents have {actions.discrete_size}")
    return _sensors(found.part, spec, range(len(spec.observation_specs)), found.hints)


def _sensors(part: Part, spec: BehaviorSpec, indices: Sequence[int], hints: Hints) -> Sensors:
    """Create the module that converts these sensors to a part of the policy's input."""
    seen = [spec.observation_specs[index] for index in indices]
    shapes = [tuple(map(int, sensor.shape)) for sensor in seen]
    observed, scale, is_picture = part.observed, part.scale, part.is_picture
    numbers, sent = sum(map(math.prod, shapes)), f"but these agents send {_seen(seen)}"
    fitting = [shapes[0], (numbers,)] if len(shapes) == 1 else [(numbers,)]
    if observed is not None and observed not in fitting:
        channels_last = len(observed) == 3 and (observed[2], *observed[:2]) in fitting
        hint = ". Its channels come last; Unity's come first" if channels_last else ""
        shape = f"{observed[0]} numbers" if len(observed) == 1 else f"the shape {observed}"
        raise MismatchError(f"it expects {shape}, {sent}{hint}")
    if is_picture and (len(shapes) > 1 or len(shapes[0]) != 3):
        raise MismatchError(f"it expects one image, {sent}")
    if not is_picture and len(shapes) > 1 and any(len(shape) > 1 for shape in shapes):
        raise MismatchError(f"it expects a single vector, {sent}")
    has_images = any(len(shape) == foreign.IMAGE_RANK for shape in shapes)
    if has_images and scale is not None and hints.image_scale not in (None, scale):
        raise MismatchError(
            f"according to the file, its pixels are from 0 to {scale:g}, not to {hints.image_scale:g} (--image-scale)"
        )
    statistics = hints.statistics
    if statistics is not None and (is_picture or (has_images and scale is not None)):
        raise MismatchError("statistics of images are not supported")
    scale = hints.image_scale if scale is None and has_images else scale
    if scale is None and has_images:
        raise MismatchError(
            "it does not say which range pixels had in training. Pass --image-scale 1 for 0 to 1, or --image-scale 255"
        )
    if statistics is not None and len(statistics.mean) != numbers:
        raise MismatchError(f"the statistics have {len(statistics.mean)} numbers, {sent}")
    return Sensors(indices, shapes, replace(part, scale=scale), statistics)


def _with_bounds(head: Head, hints: Hints) -> Head:
    """Return the head with the bounds of its actions from the hints or the file, if it needs bounds."""
    if head.kind is not HeadKind.MEANS:
        return head
    given = hints.bounds
    if given is None:
        if head.bounds is None:
            raise MismatchError(_NO_BOUNDS)
        bounds = head.bounds
    else:
        size = head.layer.out_features
        bounds = (torch.full((size,), given[0]), torch.full((size,), given[1]))
        if head.bounds is not None and not all(map(torch.equal, bounds, head.bounds)):
            shown = " and ".join(str([round(float(number), 6) for number in bound]) for bound in head.bounds)
            raise MismatchError(f"according to the file, its actions are within {shown}, so --clip cannot differ")
    if any(len(bound) != head.layer.out_features for bound in bounds):
        raise MismatchError(f"it has {head.layer.out_features} actions, but bounds for {len(bounds[0])}")
    return replace(head, bounds=bounds)


def _check_actions(head: Head, spec: BehaviorSpec) -> None:
    actions, size = spec.action_spec, head.layer.out_features
    branches = tuple(map(int, actions.discrete_branches))
    there = f"{actions.continuous_size} continuous actions and the branches {list(branches)}"
    if head.kind in (HeadKind.MEANS, HeadKind.SQUASHED):
        if branches or size != actions.continuous_size:
            raise MismatchError(f"it has {size} continuous actions, but these agents have {there}")
        return
    if actions.continuous_size or size != sum(branches) or head.branches not in (None, branches):
        own = f"branches {list(head.branches)}" if head.branches else f"branches with {size} choices in total"
        raise MismatchError(f"it has {own}, but these agents have {there}")
    if head.kind is HeadKind.VALUES and len(branches) > 1:
        raise MismatchError(f"it chooses among {size} actions, but these agents have {there}")


def _seen(sensors: Sequence[ObservationSpec]) -> str:
    return ", ".join(f"{sensor.name!r} {tuple(map(int, sensor.shape))}" for sensor in sensors)


def own_actor(
    policy: ForeignPolicy, fitted: ForeignActor, statistics: ObservationStatistics | None, spec: BehaviorSpec
) -> tuple[Actor, TrainerSettings]:
    """Convert a policy to an ``Actor``, and return it with the settings to continue training it.

    Args:
        policy: the policy as described by its file.
        fitted: the policy after it was fitted to the agents.
        statistics: statistics that normalize the observations.
        spec: spec of the agents.

    Raises:
        CheckpointError: no trainer of trajtrainer has such a policy.
    """
    linears = [layer for layer in fitted.body.layers if isinstance(layer, nn.Linear)]
    if reason := _obstacle(policy, fitted, statistics, linears, spec):
        raise CheckpointError(
            f"The policy ({policy.trainer}) cannot be converted to a run: {reason}. It can only be converted to a "
            "model for Unity: -o NAME.onnx."
        )
    is_squashed, usual = fitted.head.tanh_squash, NetworkSettings()
    network = NetworkSettings(
        normalize=statistics is not None,
        hidden_units=linears[0].out_features,
        num_layers=len(linears),
        activation=_ACTIVATIONS[type(fitted.body.layers[1])],
        goal_conditioning_type=ConditioningType.NONE,
        use_sde=fitted.head.use_sde,
        clip_actions=usual.clip_actions if is_squashed else 1.0,
        clip_obs=usual.clip_obs if statistics is None else statistics.clip,
    )
    with seeded(0):
        actor = Actor(spec, network, conditional_sigma=fitted.head.conditional_sigma, tanh_squash=is_squashed)
    layers = actor.body.layers
    assert isinstance(layers, Mlp)
    for own, layer in zip(layers.linears, linears, strict=True):
        own.load_state_dict(layer.state_dict())
    actor.head.load_state_dict(fitted.head.state_dict())
    # Converting the observations may scale and reorder the inputs of the first layer. The gradient of the layer with
    # respect to the observations gives the equivalent weights.
    if statistics is None:
        weight = layers.linears[0].weight
        shapes = [sensor.shape for sensor in spec.observation_specs]
        obs = [torch.zeros(len(weight), int(size), requires_grad=True) for (size,) in shapes]
        weight.data = torch.cat(torch.autograd.grad(fitted.body.seen(obs), obs, weight.detach()), 1)
    else:
        assert statistics.count is not None
        (sensors,) = fitted.body.parts
        assert isinstance(sensors, Sensors)
        scale = sensors.scale
        steps, start = max(1, round(statistics.count)), 0
        with torch.no_grad():
            for normalizer in actor.body.encoder.normalizers().values():
                part = slice(start, start := start + len(normalizer.mean))
                normalizer.steps.fill_(steps)
                normalizer.mean.copy_(statistics.mean[part] / scale)
                normalizer.variance.copy_(statistics.variance[part] / scale**2 * steps)  # stored as a sum of squares
    return actor, TrainerSettings(trainer_type="sac" if is_squashed else "ppo", network_settings=network)


def _obstacle(
    policy: ForeignPolicy,
    fitted: ForeignActor,
    statistics: ObservationStatistics | None,
    linears: Sequence[nn.Linear],
    spec: BehaviorSpec,
) -> str | None:
    layers, head = list(fitted.body.layers), fitted.head
    between = {type(layer) for layer in layers[1::2]}
    if any(observation_kind(sensor) is not ObservationKind.VECTOR for sensor in spec.observation_specs):
        return "its agents have observations other than vectors"
    if not linears or len(layers) != 2 * len(linears) or len({layer.out_features for layer in linears}) != 1:
        sizes = ", ".join(str(layer.out_features) for layer in linears)
        return f"its layers ({sizes or 'none'}) are not linear layers of the same size, each followed by an activation"
    if len(between) != 1 or not between <= _ACTIVATIONS.keys():
        return f"its activation is not one of {', '.join(each.value for each in _ACTIVATIONS.values())}"
    if isinstance(head, foreign.GreedyHead):
        return "it has action values instead of probabilities"
    if policy.head.kind in (HeadKind.MEANS, HeadKind.SQUASHED) and policy.head.log_sigma is None:
        return "it is deterministic, so it could not explore"
    if statistics is not None and statistics.count is None:
        return "its statistics do not say how many observations they cover (count)"
    return None


def write_run(
    folder: Path, behavior: str, policy: ForeignPolicy, actor: Actor, trainer: TrainerSettings, settings: RunSettings
) -> None:
    """Write a run that contains only this policy: checkpoint, ``.onnx``, ``configuration.yaml`` and status.

    Args:
        folder: folder of the run, which must not exist yet.
        behavior: name of the behavior.
        policy: the policy as described by its file.
        actor: the policy as an ``Actor``.
        trainer: settings of the behavior.
        settings: environment settings.

    Raises:
        TrajtrainerError: the run cannot be written. In this case, the folder is removed.
    """
    results = CheckpointSettings(run_id=folder.name, results_dir=str(folder.parent))
    run = RunFolder(results)
    record = PolicyRecord(behavior, IMPORTED, actor.spec, trainer.network_settings, actor.head.tanh_squash)
    state = checkpoint_of_policy(actor, record, policy.step)
    try:
        folder.mkdir()
    except OSError as error:
        raise CheckpointError(f"The folder {folder} cannot be created: {error.strerror or error}.") from error
    try:
        status = TrainingStatus(run.status)
        status.set_imported_from(behavior, policy.trainer)
        manager = CheckpointManager(run.behavior(behavior), status, keep=0)
        manager.save_final(policy.step, None, state, lambda path: export_policy(actor, actor.spec, path, synced=False))
        if not run.behavior(behavior).exported.is_file():
            raise CheckpointError(f"{folder} could not be written: its policy could not be exported.")
        run.write_configuration(
            dump(evolve(settings, behaviors={behavior: trainer}, checkpoint_settings=results, default_settings=None))
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
