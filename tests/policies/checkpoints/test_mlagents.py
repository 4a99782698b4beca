"""Checkpoints in ML-Agents' layout: written with its keys, read leniently, never run."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.learning.nn.golden import POCA_CASES, PPO_CASES, SAC_CASES, Case, policy_case
from tests.learning.nn.specs import behavior, camera, network, vector
from tests.run import prefork
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind
from trajtrainer.learning.algos.poca import poca
from trajtrainer.learning.algos.ppo import ppo
from trajtrainer.learning.algos.sac import sac
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.critic import AnyCritic, SharedCritic, ValueNetwork
from trajtrainer.learning.nn.mlagents import CheckpointLayout, mlagents_keys
from trajtrainer.learning.nn.multi_agent import GroupCritic
from trajtrainer.learning.rewards.rnd import RndNetwork
from trajtrainer.policies.checkpoints.file import read_checkpoint
from trajtrainer.policies.checkpoints.mlagents.convert import EXTRA, from_mlagents, to_mlagents
from trajtrainer.policies.checkpoints.mlagents.description import describe
from trajtrainer.policies.checkpoints.recovered_policy import load_actor
from trajtrainer.settings.network import ConditioningType, NetworkSettings


def parameters(*modules: nn.Module) -> list[nn.Parameter]:
    return [parameter for module in modules for parameter in module.parameters()]


def is_adam(key: str) -> bool:
    return "optimizer" in key or key == "Optimizer:adam"


def modules_of(case: Case) -> dict[str, nn.Module]:
    """Freshly made networks for a golden case."""
    spec, settings = case.spec, case.settings
    actor = Actor(spec, settings, conditional_sigma=case.is_sac, tanh_squash=case.is_sac)
    if case.name in POCA_CASES:
        return {"actor": actor, "critic": GroupCritic(spec, settings, case.signals)}
    if not case.is_sac:
        critic: AnyCritic = (
            SharedCritic(actor, case.signals) if case.shared_critic else ValueNetwork(spec, settings, case.signals)
        )
        return {"actor": actor, "critic": critic}
    action = spec.action_spec
    q: dict[str, Any] = {"action_size": action.continuous_size, "outputs": max(1, sum(action.discrete_branches))}
    return {
        "actor": actor,
        "q1": ValueNetwork(spec, settings, case.signals, **q),
        "q2": ValueNetwork(spec, settings, case.signals, **q),
        "critic": ValueNetwork(spec, settings, case.signals),
        "target": ValueNetwork(spec, settings, case.signals),
    }


def optimizers_of(modules: dict[str, nn.Module], branches: int) -> dict[str, torch.optim.Optimizer]:
    if "q1" not in modules:
        return {"adam": torch.optim.Adam(parameters(modules["actor"], modules["critic"]), lr=0.001)}
    coefficients = [nn.Parameter(torch.zeros(branches)), nn.Parameter(torch.zeros(1))]
    return {
        "policy": torch.optim.Adam(parameters(modules["actor"]), lr=0.001),
        "value": torch.optim.Adam(parameters(modules["q1"], modules["q2"], modules["critic"]), lr=0.001),
        "entropy": torch.optim.Adam(coefficients, lr=0.001),
    }


def layout_of(modules: dict[str, nn.Module]) -> CheckpointLayout:
    if "q1" in modules:
        return sac.LAYOUT
    if isinstance(modules["critic"], GroupCritic):
        return poca.LAYOUT
    return ppo.SHARED_LAYOUT if isinstance(modules["critic"], SharedCritic) else ppo.LAYOUT


def state_of(
    modules: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer], step: int = 0, **extra: Any
) -> dict[str, Any]:
    return {
        "step": step,
        "modules": {name: module.state_dict() for name, module in modules.items()},
        "keys": {name: mlagents_keys(module) for name, module in modules.items()},
        "layout": layout_of(modules),
        "optimizers": {name: optimizer.state_dict() for name, optimizer in optimizers.items()},
        "extra": extra,
    }


def fresh(case: Case) -> dict[str, Any]:
    modules = modules_of(case)
    state = state_of(modules, optimizers_of(modules, len(case.spec.action_spec.discrete_branches)))
    rewards = {key.removeprefix("Module:") for key in case.checkpoint if key.startswith("Module:")}
    # Golden cases with RND use bodies of 8 units and one layer.
    settings = NetworkSettings(hidden_units=8, num_layers=1)
    bodies = {name: RndNetwork(case.spec.observation_specs, settings) for name in sorted(rewards)}
    state["rewards"] = {name: body.state_dict() for name, body in bodies.items()}
    state["keys"] |= {name: mlagents_keys(body) for name, body in bodies.items()}
    return state


def same(actual: Any, expected: Any, path: str = "") -> None:
    """Equal to the last bit, whatever is nested in it."""
    if isinstance(expected, Tensor):
        assert isinstance(actual, Tensor), path
        assert actual.dtype == expected.dtype, path
        assert torch.equal(actual, expected), path
    elif isinstance(expected, dict):
        assert set(actual) == set(expected), path
        for key, value in expected.items():
            same(actual[key], value, f"{path}/{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected), path
        for i, value in enumerate(expected):
            same(actual[i], value, f"{path}/{i}")
    else:
        assert actual == expected, path


@pytest.fixture(params=PPO_CASES + SAC_CASES + POCA_CASES)
def case(request: pytest.FixtureRequest, shared_data: Path) -> Case:
    return policy_case(shared_data, request.param)


# writing


def test_the_keys_and_shapes_are_those_of_mlagents(case: Case) -> None:
    written = to_mlagents(fresh(case))
    assert set(written) - set(case.checkpoint) == {EXTRA}
    for key, entries in case.described["checkpoint_keys"].items():
        if is_adam(key):
            continue
        assert list(written[key]) == list(entries), key
        for name, shape in entries.items():
            assert list(written[key][name].shape) == shape, f"{key}/{name}"
            assert written[key][name].dtype == case.checkpoint[key][name].dtype, f"{key}/{name}"


def test_the_optimizers_have_the_form_of_mlagents(case: Case) -> None:
    written = to_mlagents(fresh(case))
    for key in filter(is_adam, case.checkpoint):
        assert written[key] == case.checkpoint[key], key


# reading


def test_a_checkpoint_read_and_written_is_the_same(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    state = from_mlagents(case.checkpoint, fresh(case))
    assert not caplog.records, caplog.text
    assert state["step"] == case.described["step"] == 2500
    assert state["extra"] == {}
    written = to_mlagents(state)
    del written[EXTRA]
    same(written, case.checkpoint)


def test_our_state_written_and_read_is_the_same(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    state = fresh(case)
    state["step"], state["extra"] = 77, {"rng": {"acting": torch.arange(3, dtype=torch.uint8)}, "best": 1.5}
    same(from_mlagents(to_mlagents(state), fresh(case)), state)
    assert not caplog.records, caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "ppo_continuous",
        "ppo_discrete",
        "ppo_hybrid",
        "ppo_lstm",
        "ppo_shared_critic",
        "ppo_visual_simple_shared",
        "sac_continuous_two_signals",
        "sac_discrete",
        "sac_hybrid",
        "sac_lstm",
    ],
)
def test_moments_of_adam_are_carried_over(shared_data: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """These have been through updates. Written back they are the same, and our Adam takes them."""
    folder = shared_data / "golden" / "updates" / name
    theirs = read_checkpoint(folder / "start.pt")
    case = Case(name, json.loads((folder / "case.json").read_text()), {}, theirs)
    modules = modules_of(case)
    optimizers = optimizers_of(modules, len(case.spec.action_spec.discrete_branches))
    like = fresh(case)
    state = from_mlagents(theirs, {**like, **state_of(modules, optimizers), "keys": like["keys"]})
    assert not caplog.records, caplog.text
    for ours, optimizer in optimizers.items():
        assert state["optimizers"][ours]["state"]
        optimizer.load_state_dict(state["optimizers"][ours])
        for parameter, moments in optimizer.state.items():
            assert moments["exp_avg"].shape == parameter.shape
    written = to_mlagents(state)
    del written[EXTRA]
    same(written, theirs)


def test_moments_stand_with_the_right_parameters(shared_data: Path) -> None:
    """PPO's first moments after one update from nothing are a tenth of the gradients, which the golden data name."""
    folder = shared_data / "golden" / "updates" / "ppo_continuous_fresh"
    theirs = read_checkpoint(folder / "after_1.pt")
    case = Case("", json.loads((folder / "case.json").read_text()), {}, theirs)
    state = from_mlagents(theirs, fresh(case))
    with np.load(folder / "data.npz") as data:
        gradient = data["gradient_Policy/action_model._continuous_distribution.mu.weight"]
    names = [name for name, _ in modules_of(case)["actor"].named_parameters()]
    moments = state["optimizers"]["adam"]["state"][names.index("head.mu.weight")]
    np.testing.assert_allclose(moments["exp_avg"].numpy(), 0.1 * gradient, atol=1e-7)


def test_tensors_are_our_own(shared_data: Path) -> None:
    case = policy_case(shared_data, "ppo_hybrid")
    state = from_mlagents(case.checkpoint, fresh(case))
    before = copy.deepcopy(case.checkpoint["Policy"])
    for module in state["modules"].values():
        for value in module.values():
            value.zero_()
    same(case.checkpoint["Policy"], before)


def simple(spec: BehaviorSpec, settings: NetworkSettings, signals: tuple[str, ...] = ("extrinsic",)) -> dict[str, Any]:
    actor = Actor(spec, settings)
    modules: dict[str, nn.Module] = {"actor": actor, "critic": ValueNetwork(spec, settings, signals)}
    return state_of(modules, optimizers_of(modules, 0))


def test_all_that_does_not_match_is_named_in_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    theirs = to_mlagents(
        simple(behavior([vector(4)], 2), network(normalize=True, hidden=8), ("extrinsic", "curiosity"))
    )
    theirs["Module:Curiosity"] = {"something": torch.zeros(1)}
    theirs["Policy"]["network_body.odd"] = torch.zeros(1)
    del theirs["Policy"]["action_model._continuous_distribution.mu.bias"]
    like = simple(behavior([vector(4)], 2, (3, 2)), network(hidden=16), ("extrinsic", "rnd"))
    state = from_mlagents(theirs, like, source="old.pt")
    (record,) = caplog.records
    for words in (
        "old.pt",
        "Policy/network_body._body_endoder.seq_layers.0.weight (shape (8, 4), expected shape (16, 4))",
        "Policy/action_model._continuous_distribution.mu.bias",
        "Policy/action_model._discrete_distribution.branches.0.weight",
        "Policy/action_model._discrete_distribution.branches.1.bias",
        "Optimizer:critic/value_heads.value_heads.rnd.weight",
        "Optimizer:critic/value_heads.value_heads.curiosity.weight",
        "Policy/network_body.observation_encoder.processors.0.normalizer.running_mean",
        "Policy/network_body.odd",
        "Module:Curiosity",
    ):
        assert words in record.getMessage(), words
    assert "version_number" not in record.getMessage()
    assert "network_body.processors" not in record.getMessage()
    # The head's log sigma fits and is taken; what does not fit stays.
    assert torch.equal(
        state["modules"]["actor"]["body.layers.layers.0.weight"],
        like["modules"]["actor"]["body.layers.layers.0.weight"],
    )


def test_what_fits_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    spec = behavior([vector(4)], 0, (3, 2))
    source = simple(spec, network())
    theirs = to_mlagents(source)
    theirs["Policy"]["network_body._body_endoder.seq_layers.0.weight"] = torch.zeros(16, 5)
    like = simple(spec, network())
    state = from_mlagents(theirs, like)
    for module in ("actor", "critic"):
        for name, value in state["modules"][module].items():
            expected = like if (module, name) == ("actor", "body.layers.layers.0.weight") else source
            assert torch.equal(value, expected["modules"][module][name]), name
    assert len(caplog.records) == 1


def test_branches_of_other_sizes_but_the_same_sum_do_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    theirs = to_mlagents(simple(behavior([vector(4)], 0, (3, 2)), network()))
    like = simple(behavior([vector(4)], 0, (2, 3)), network())
    state = from_mlagents(theirs, like)
    assert torch.equal(
        state["modules"]["actor"]["head.discrete.weight"], like["modules"]["actor"]["head.discrete.weight"]
    )
    assert "branches.0.weight (shape (3, 16), expected shape (2, 16))" in caplog.text


@pytest.mark.parametrize("broken", [{}, {"state": {}}, {"state": {}, "param_groups": [{"params": [0]}]}, 5, None])
def test_an_optimizer_that_does_not_fit_starts_anew(broken: Any, caplog: pytest.LogCaptureFixture) -> None:
    spec = behavior([vector(4)])
    theirs = to_mlagents(simple(spec, network()))
    theirs["Optimizer:value_optimizer"] = broken
    like = simple(spec, network())
    same(from_mlagents(theirs, like)["optimizers"], like["optimizers"])
    assert "Optimizer:value_optimizer" in caplog.text
    assert len(caplog.records) == 1


def test_rubbish_instead_of_weights(caplog: pytest.LogCaptureFixture) -> None:
    spec = behavior([vector(4)])
    theirs: dict[str, Any] = to_mlagents(simple(spec, network()))
    theirs["Policy"]["action_model._continuous_distribution.mu.bias"] = "text"
    theirs["Optimizer:critic"] = [1, 2]
    theirs["global_step"] = "many"
    like = simple(spec, network())
    state = from_mlagents(theirs, like)
    assert state["step"] == 0
    same(state["modules"]["critic"], like["modules"]["critic"])
    assert "mu.bias (a str, expected shape (2,))" in caplog.text
    assert "global_step" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("from_shared", [True, False])
def test_between_shared_and_own_critic(from_shared: bool, caplog: pytest.LogCaptureFixture) -> None:
    spec = behavior([vector(4)])

    def state(shared: bool) -> dict[str, Any]:
        actor = Actor(spec, network())
        critic: AnyCritic = (
            SharedCritic(actor, ["extrinsic"]) if shared else ValueNetwork(spec, network(), ["extrinsic"])
        )
        modules: dict[str, nn.Module] = {"actor": actor, "critic": critic}
        return state_of(modules, optimizers_of(modules, 0))

    source = state(from_shared)
    taken = from_mlagents(to_mlagents(source), state(not from_shared))
    same(taken["modules"]["actor"], source["modules"]["actor"])
    assert len(caplog.records) == 1
    assert "Optimizer:value_optimizer" not in caplog.text


def test_extra_must_be_plain(tmp_path: Path) -> None:
    state = simple(behavior([vector(4)]), network())
    state["extra"] = {"rng": {"numpy": [1, 2.5, "x", None, True, torch.zeros(2)]}}
    torch.save(to_mlagents(state), tmp_path / "a.pt")
    same(read_checkpoint(tmp_path / "a.pt")[EXTRA], state["extra"])
    state["extra"] = {"a": [{"b": np.float64(1.0)}]}
    with pytest.raises(TypeError, match=r"extra\['a'\]\[0\]\['b'\] is a float64"):
        to_mlagents(state)


# real runs


@pytest.mark.parametrize("name", ["PushButton-499970", "PushButton_checkpoint"])
@torch.no_grad()
def test_a_real_run_loads_and_acts_as_its_export(
    shared_data: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    theirs = read_checkpoint(shared_data / "models" / f"{name}.pt")
    found = describe(theirs)
    assert found.trainer_type == "ppo"
    assert found.signals == ("extrinsic",)
    assert tuple(found.action_spec.discrete_branches) == (3, 3, 2)
    assert found.action_spec.continuous_size == 0
    assert found.encoding_size == found.plain_vector_size == 4
    assert found.settings == NetworkSettings(goal_conditioning_type=ConditioningType.NONE)
    spec = BehaviorSpec([vector(found.plain_vector_size)], found.action_spec)
    actor = Actor(spec, found.settings)
    modules: dict[str, nn.Module] = {"actor": actor, "critic": ValueNetwork(spec, found.settings, found.signals)}
    state = from_mlagents(theirs, state_of(modules, optimizers_of(modules, 0)))
    assert not caplog.records, caplog.text
    assert state["step"] == (499970 if name.endswith("499970") else 500019)
    assert len(state["optimizers"]["adam"]["state"]) == len(parameters(*modules.values()))
    actor.load_state_dict(state["modules"]["actor"])
    obs = torch.randn(64, 4, generator=torch.Generator().manual_seed(3))
    mask = torch.rand(64, 8, generator=torch.Generator().manual_seed(4)) < 0.2
    mask[:, [0, 3, 6]] = False
    distribution, _ = actor.distribution([obs], mask)
    session = onnxruntime.InferenceSession(str(shared_data / "models" / "PushButton-499970.onnx"))
    (actions,) = session.run(
        ["deterministic_discrete_actions"], {"obs_0": obs.numpy(), "action_masks": (~mask).float().numpy()}
    )
    assert np.array_equal(distribution.deterministic().discrete.numpy(), actions)


# descriptions


def test_what_checkpoints_tell(case: Case) -> None:
    found = describe(case.checkpoint)
    spec, settings = case.spec, case.settings
    assert found.trainer_type == case.described["trainer_type"]
    assert found.action_spec.continuous_size == spec.action_spec.continuous_size
    assert tuple(found.action_spec.discrete_branches) == tuple(spec.action_spec.discrete_branches)
    assert list(found.signals) == case.signals
    assert found.shared_critic == case.shared_critic
    assert found.settings.hidden_units == settings.hidden_units
    assert found.settings.num_layers == settings.num_layers
    assert found.settings.normalize == settings.normalize
    assert found.settings.vis_encode_type == settings.vis_encode_type
    memory = found.settings.memory
    assert (memory and memory.memory_size) == (settings.memory and settings.memory.memory_size)
    goal = sum(o.shape[0] for o in spec.observation_specs if o.observation_type.value == 1)
    assert found.goal_size == (goal if settings.goal_conditioning_type is ConditioningType.HYPER else 0)
    for sensor in found.sensors:
        shape = spec.observation_specs[sensor.index].shape
        if sensor.kind is ObservationKind.VARIABLE_LENGTH:
            assert sensor.size == shape[1]
        elif settings.vis_encode_type == "fully_connected":
            assert sensor.size == np.prod(shape)
        else:
            assert sensor.size == shape[0]
    vectors = sum(o.shape[0] for o in spec.observation_specs if len(o.shape) == 1)
    assert found.plain_vector_size == (0 if settings.normalize else vectors)


@pytest.mark.parametrize("name", PPO_CASES + SAC_CASES + POCA_CASES)
@torch.no_grad()
def test_a_policy_from_the_checkpoint_alone(shared_data: Path, name: str) -> None:
    """With its settings inferred it gives ML-Agents' actions."""
    case = policy_case(shared_data, name)
    actor = load_actor(case.checkpoint, case.spec)
    distribution, _ = actor.distribution(case.obs(), case.mask(), case.memory())
    best = distribution.deterministic()
    if "mu" in case:
        torch.testing.assert_close(distribution.mu, case["mu"], atol=1e-5, rtol=0)
        torch.testing.assert_close(distribution.sigma.expand_as(case["mu"]), case["sigma"], atol=1e-5, rtol=0)
    if "deterministic_sample_discrete" in case:
        assert torch.equal(best.discrete, case["deterministic_sample_discrete"].long())


def test_loading_a_policy_does_without_torchs_compiler(tmp_path: Path) -> None:
    """The last save of a run loads the best policy. On the meta device, some functions of torch import the compiler."""
    spec = behavior([vector(5)], 2, (3, 2))
    torch.save(to_mlagents(simple(spec, network())), tmp_path / "policy.pt")
    program = (
        "import sys, torch; from tests.learning.nn.specs import behavior, vector; "
        "from trajtrainer.policies.checkpoints.recovered_policy import load_actor; "
        f"load_actor(torch.load({str(tmp_path / 'policy.pt')!r}), behavior([vector(5)], 2, (3, 2))); "
        "print('torch._dynamo' in sys.modules)"
    )
    code, output = prefork.run(program, log=tmp_path / "log")
    assert (code, output.splitlines()[-1]) == (0, "False"), output


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            behavior([vector(5)], 2, (3, 3)),
            r"2 continuous actions and the discrete branches \(3, 2\), expected 2 and \(3, 3\)",
        ),
        (behavior([vector(6)], 2, (3, 2)), "first layer has 5 inputs, of which 5 are from vectors"),
        (behavior([vector(5), camera(3, 2, 2)], 2, (3, 2)), "camera"),
    ],
)
def test_a_policy_for_other_agents(shared_data: Path, spec: BehaviorSpec, words: str) -> None:
    theirs = policy_case(shared_data, "ppo_hybrid").checkpoint
    with pytest.raises(CheckpointError, match=words) as caught:
        load_actor(theirs, spec, source="a.pt")
    assert "a.pt" in str(caught.value)


@pytest.mark.parametrize("theirs", [{}, {"Policy": {}}, {"Policy": {"version_number": 3}}, {"Policy": "x"}])
def test_a_policy_of_something_else_cannot_be_described(theirs: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="does not come from ML-Agents"):
        describe(theirs)
