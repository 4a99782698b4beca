"""Policies of other trainers as runs of ours, from which a training can start."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import evolve
from torch import nn

from trajtrainer.checkpoints.manager import CheckpointManager
from trajtrainer.checkpoints.mlagents.convert import LEARNER, to_mlagents
from trajtrainer.checkpoints.recovered_policy import RECORD, PolicyRecord
from trajtrainer.commands.importing.policy import ForeignActor, ForeignPolicy, GreedyHead, HeadKind, Statistics
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.conditioning import Mlp
from trajtrainer.nn.init import seeded
from trajtrainer.nn.mlagents import CheckpointLayout, mlagents_keys
from trajtrainer.onnx.export import export_policy
from trajtrainer.rundir.folder import RunFolder
from trajtrainer.rundir.status import TrainingStatus
from trajtrainer.settings.network import Activation, ConditioningType, NetworkSettings
from trajtrainer.settings.run import CheckpointSettings, RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump

IMPORTED = "imported"
"""``trainer_type`` in the record of such a policy, of which there is nothing but the policy to go on with."""
_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.SiLU: Activation.SWISH,
    nn.Tanh: Activation.TANH,
    nn.ReLU: Activation.RELU,
}


def own_actor(
    policy: ForeignPolicy, fitted: ForeignActor, statistics: Statistics | None, spec: BehaviorSpec
) -> tuple[Actor, TrainerSettings]:
    """The same policy as one of ours, and settings with which it is trained.

    Args:
        policy: as its file describes it.
        fitted: the same for the agents.
        statistics: by which observations are normalized.
        spec: of the agents.

    Raises:
        CheckpointError: no trainer of ours has such a policy.
    """
    linears = [layer for layer in fitted.body.layers if isinstance(layer, nn.Linear)]
    if reason := _what_is_not_ours(policy, fitted, statistics, linears, spec):
        raise CheckpointError(
            f"The {policy.trainer} cannot become a run: {reason}. It can only become a model for Unity: -o NAME.onnx."
        )
    is_squashed = fitted.head.tanh_squash
    network = NetworkSettings(
        normalize=statistics is not None,
        hidden_units=linears[0].out_features,
        num_layers=len(linears),
        activation=_ACTIVATIONS[type(fitted.body.layers[1])],
        goal_conditioning_type=ConditioningType.NONE,
        use_sde=fitted.head.use_sde,
    )
    if not is_squashed:
        network = evolve(network, clip_actions=1.0)
    if statistics is not None:
        network = evolve(network, clip_obs=statistics.clip)
    with seeded(0):
        conditional = fitted.head.conditional_sigma
        actor = Actor(spec, network, conditional_sigma=conditional, tanh_squash=is_squashed)
    layers = actor.body.layers
    assert isinstance(layers, Mlp)
    for own, layer in zip(layers.linears, linears, strict=True):
        own.load_state_dict(layer.state_dict())
    actor.head.load_state_dict(fitted.head.state_dict())
    if statistics is not None:
        _set_normalizers(actor, statistics)
    return actor, TrainerSettings(trainer_type="sac" if is_squashed else "ppo", network_settings=network)


def _what_is_not_ours(
    policy: ForeignPolicy,
    fitted: ForeignActor,
    statistics: Statistics | None,
    linears: Sequence[nn.Linear],
    spec: BehaviorSpec,
) -> str | None:
    layers, head = list(fitted.body.layers), fitted.head
    between = {type(layer) for layer in layers[1::2]}
    if any(observation_kind(sensor) is not ObservationKind.VECTOR for sensor in spec.observation_specs):
        return "its agents see more than vectors"
    if not linears or len(layers) != 2 * len(linears) or len({layer.out_features for layer in linears}) != 1:
        sizes = ", ".join(str(layer.out_features) for layer in linears)
        return f"its layers ({sizes or 'none'}) are not linear layers of one size, each followed by an activation"
    if len(between) != 1 or not between <= _ACTIVATIONS.keys():
        return f"its activation is none of {', '.join(each.value for each in _ACTIVATIONS.values())}"
    if isinstance(head, GreedyHead):
        return "it has action values instead of probabilities"
    if policy.head.kind in (HeadKind.MEANS, HeadKind.SQUASHED) and policy.head.log_sigma is None:
        return "it is deterministic, so it could not explore"
    if statistics is not None and statistics.count is None:
        return "its statistics do not say how many observations they cover (count)"
    return None


@torch.no_grad()
def _set_normalizers(actor: Actor, statistics: Statistics) -> None:
    """Give each sensor its part of the statistics; ``variance`` is the sum of squares there."""
    assert statistics.count is not None
    steps, start = max(1, round(statistics.count)), 0
    for normalizer in actor.body.encoder.normalizers().values():
        part = slice(start, start + len(normalizer.mean))
        normalizer.steps.fill_(steps)
        normalizer.mean.copy_(statistics.mean[part])
        normalizer.variance.copy_(statistics.variance[part] * steps)
        start = part.stop


def write_run(
    folder: Path, behavior: str, policy: ForeignPolicy, actor: Actor, trainer: TrainerSettings, settings: RunSettings
) -> None:
    """Write a run that has this policy and nothing else: checkpoint, ``.onnx``, ``configuration.yaml``, status.

    Args:
        folder: of the run; it must not be there.
        behavior: name.
        policy: as its file describes it.
        actor: the same as one of ours.
        trainer: settings of the behavior.
        settings: of the environment.

    Raises:
        TrajtrainerError: it cannot be written; nothing is left of it then.
    """
    results = CheckpointSettings(run_id=folder.name, results_dir=str(folder.parent))
    run = RunFolder(results)
    record = PolicyRecord(behavior, IMPORTED, actor.spec, trainer.network_settings, actor.head.tanh_squash)
    state = to_mlagents(
        {
            "step": policy.step,
            "modules": {"actor": actor.state_dict()},
            "keys": {"actor": mlagents_keys(actor)},
            "layout": CheckpointLayout(),
            "optimizers": {},
            "extra": {RECORD: record.to_plain(), LEARNER: {}},
        }
    )
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
