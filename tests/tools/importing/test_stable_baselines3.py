"""Models of Stable-Baselines3 act in Unity as they do there."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tests.learning.nn.specs import behavior, camera, vector
from tests.tools.importing.files import NOTHING, Array, fitted, imported, observations, read
from trajtrainer.core.errors import CheckpointError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.policies.onnx import contract
from trajtrainer.tools.importing.fit import fitted_actor, own_actor
from trajtrainer.tools.importing.policy import HeadKind, Hints, ObservationStatistics
from trajtrainer.tools.importing.weights import read_statistics

sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")


pytestmark = pytest.mark.filterwarnings("ignore")  # of Stable-Baselines3, about what it does here

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
BYTES = spaces.Box(0, 255, (3, 40, 44), np.uint8)
FLOATS = spaces.Box(0.0, 1.0, (3, 40, 44), np.float32)
SMALL = {"net_arch": [12, 7]}


class World(gymnasium.Env[Any, Any]):
    """Nothing happens."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, False, False, {}


def make(
    name: str, observation: spaces.Space[Any], action: spaces.Space[Any], policy: str = "MlpPolicy", **options: Any
) -> Any:
    """A model that nobody has trained, none of whose weights are what they start as."""
    if name not in ("PPO", "A2C"):
        options["buffer_size"] = 10
    options["policy_kwargs"] = dict(options.get("policy_kwargs", {}))  # it is changed there
    model = getattr(sb3, name)(policy, World(observation, action), seed=3, device="cpu", **options)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            spread = 0.5 / max(20, parameter[0].numel()) ** 0.5
            parameter.add_(torch.empty_like(parameter).normal_(0.0, spread, generator=generator))
    return model


def saved(model: Any, folder: Path) -> Path:
    path = folder / "model.zip"
    model.save(path)
    return path


def seen(space: spaces.Space[Any]) -> tuple[BehaviorSpec, Array, Array]:
    """A sensor of such observations with two continuous actions, and some as the model and as Unity has them."""
    shape = space.shape or ()
    if len(shape) == 1:
        (values,) = observations(6, shape)
        return behavior([vector(shape[0])]), values, values
    bytes_ = np.random.default_rng(3).integers(0, 256, (6, *shape), np.uint8)
    floats = bytes_.astype(np.float32) / 255
    return behavior([camera(shape[0], shape[1], shape[2])]), bytes_ if space.dtype == np.uint8 else floats, floats


CONTINUOUS: dict[str, Callable[[], Any]] = {
    "PPO": lambda: make("PPO", VECTOR, BOX, policy_kwargs={"log_std_init": -1.0}),
    "A2C": lambda: make("A2C", VECTOR, BOX),
    "other sizes and activation": lambda: make(
        "PPO", VECTOR, BOX, policy_kwargs={"net_arch": {"pi": [12, 7], "vf": [3]}, "activation_fn": torch.nn.ELU}
    ),
    "no layers": lambda: make("PPO", VECTOR, BOX, policy_kwargs={"net_arch": []}),
    "other bounds": lambda: make(
        "PPO", VECTOR, spaces.Box(np.array([-2.0, 0.1], np.float32), np.array([3.0, 5.0], np.float32))
    ),
    "PPO with gSDE": lambda: make("PPO", VECTOR, BOX, use_sde=True, policy_kwargs={"log_std_init": -2.0}),
    "SAC": lambda: make("SAC", VECTOR, spaces.Box(-2.0, 1.0, (2,)), policy_kwargs=SMALL),
    "SAC with gSDE": lambda: make(
        "SAC", VECTOR, BOX, use_sde=True, policy_kwargs={**SMALL, "use_expln": True, "log_std_init": 0.1}
    ),
    "TD3": lambda: make("TD3", VECTOR, BOX, policy_kwargs={**SMALL, "activation_fn": torch.nn.LeakyReLU}),
    "DDPG": lambda: make("DDPG", VECTOR, BOX, policy_kwargs=SMALL),
    "PPO on pictures": lambda: make("PPO", BYTES, BOX, "CnnPolicy"),
    "critic apart": lambda: make("PPO", BYTES, BOX, "CnnPolicy", policy_kwargs={"share_features_extractor": False}),
    "pixels up to 255": lambda: make(
        "A2C", BYTES, spaces.Box(-200.0, 200.0, (2,)), "CnnPolicy", policy_kwargs={"normalize_images": False}
    ),
    "SAC on pictures": lambda: make("SAC", BYTES, BOX, "CnnPolicy", policy_kwargs=SMALL),
    "layers on pixels": lambda: make("PPO", BYTES, BOX, policy_kwargs=SMALL),
    "pictures of floats": lambda: make("PPO", FLOATS, BOX, "CnnPolicy", policy_kwargs={"normalize_images": False}),
}


def as_in_unity(action: Array, space: spaces.Box) -> Array:
    return 2 * (action - space.low) / (space.high - space.low) - 1


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_actions(name: str, tmp_path: Path) -> None:
    model = CONTINUOUS[name]()
    spec, theirs, ours = seen(model.observation_space)
    hints = Hints(image_scale=1.0) if name == "pictures of floats" else Hints()
    act = imported(saved(model, tmp_path), spec, hints)
    wanted = as_in_unity(model.predict(theirs, deterministic=True)[0], model.action_space)
    found = act(ours)
    np.testing.assert_allclose(found[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=2e-5)
    assert np.abs(wanted).min() < 0.99
    if name in ("TD3", "DDPG"):
        np.testing.assert_array_equal(found[contract.CONTINUOUS_ACTIONS], found[contract.DETERMINISTIC_CONTINUOUS])


@pytest.mark.parametrize("name", ["PPO", "other bounds", "PPO with gSDE", "SAC", "SAC with gSDE"])
def test_what_is_drawn(name: str, tmp_path: Path) -> None:
    model = CONTINUOUS[name]()
    spec, theirs, ours = seen(model.observation_space)
    drawn = imported(saved(model, tmp_path), spec)(np.repeat(ours[:1], 40_000, 0))[contract.CONTINUOUS_ACTIONS]
    if model.use_sde:
        model.policy.reset_noise(40_000)
    torch.manual_seed(5)
    wanted = as_in_unity(model.predict(np.repeat(theirs[:1], 40_000, 0))[0], model.action_space)
    quantiles = np.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(np.quantile(drawn, quantiles, 0), np.quantile(wanted, quantiles, 0), atol=0.03)
    assert drawn.std(0).min() > 0.05


DISCRETE: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "PPO": (lambda: make("PPO", VECTOR, spaces.Discrete(4)), (4,)),
    "branches": (lambda: make("A2C", VECTOR, spaces.MultiDiscrete([3, 2])), (3, 2)),
    "DQN": (lambda: make("DQN", VECTOR, spaces.Discrete(4), policy_kwargs=SMALL), (4,)),
    "DQN on pictures": (lambda: make("DQN", BYTES, spaces.Discrete(3), "CnnPolicy"), (3,)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_actions(name: str, tmp_path: Path) -> None:
    model, branches = DISCRETE[name][0](), DISCRETE[name][1]
    spec, theirs, ours = seen(model.observation_space)
    act = imported(saved(model, tmp_path), behavior(spec.observation_specs, 0, branches))
    wanted = model.predict(theirs, deterministic=True)[0].reshape(len(ours), -1)
    found = act(ours)
    np.testing.assert_array_equal(found[contract.DETERMINISTIC_DISCRETE], wanted)
    is_greedy = np.array_equal(found[contract.DISCRETE_ACTIONS], act(ours)[contract.DISCRETE_ACTIONS])
    assert is_greedy == name.startswith("DQN") or len(branches) > 1
    # What is best is forbidden.
    allowed = np.ones((len(ours), sum(branches)))
    allowed[np.arange(len(ours)), wanted[:, 0]] = 0
    for output in (contract.DETERMINISTIC_DISCRETE, contract.DISCRETE_ACTIONS):
        assert (act(ours, allowed=allowed)[output][:, 0] != wanted[:, 0]).all()


def test_values_that_hardly_differ(tmp_path: Path) -> None:
    """Their softmax would not."""
    model = make("DQN", VECTOR, spaces.Discrete(3), policy_kwargs={"net_arch": []})
    with torch.no_grad():
        model.q_net.q_net[0].weight.zero_()
        model.q_net.q_net[0].bias.copy_(torch.tensor([1e-9, 3e-9, 2e-9]))
    act = imported(saved(model, tmp_path), behavior([vector(5)], 0, (3,)))
    assert act(np.zeros((1, 5)))[contract.DETERMINISTIC_DISCRETE] == 1


def test_normalized_observations(tmp_path: Path) -> None:
    vec_env = sb3.common.vec_env
    envs = vec_env.VecNormalize(vec_env.DummyVecEnv([lambda: World(VECTOR, BOX)]), clip_obs=1.5, epsilon=1e-3)
    (rows,) = observations(200, (5,))
    envs.obs_rms.update(rows * 4 + 3)
    v = envs
    np.savez(
        tmp_path / "stats.npz",
        mean=v.obs_rms.mean,
        var=v.obs_rms.var,
        count=v.obs_rms.count,
        epsilon=v.epsilon,
        clip_obs=v.clip_obs,
    )
    model = make("PPO", VECTOR, BOX)
    hints = Hints(statistics=read_statistics(tmp_path / "stats.npz"))
    act = imported(saved(model, tmp_path), behavior([vector(5)]), hints)
    wanted, _ = model.predict(envs.normalize_obs(rows[:9] * 6), deterministic=True)
    np.testing.assert_allclose(act(rows[:9] * 6)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def test_several_vectors_are_joined_in_their_order(tmp_path: Path) -> None:
    model = make("PPO", VECTOR, BOX)
    act = imported(saved(model, tmp_path), behavior([vector(2, "a"), vector(3, "b")]))
    first, second = observations(4, (2,), (3,))
    wanted, _ = model.predict(np.concatenate([first, second], 1), deterministic=True)
    np.testing.assert_allclose(act(first, second)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


CODES = spaces.Box(0, 255, (5,), np.uint8)


@pytest.mark.parametrize("name", ["PPO", "SAC", "TD3"])
def test_vectors_of_bytes_are_not_divided_there(name: str, tmp_path: Path) -> None:
    """Environments for Gymnasium send them as 0 to 1."""
    model = make(name, CODES, BOX, policy_kwargs=SMALL)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter.mul_(0.2)
    path = saved(model, tmp_path)
    bytes_ = np.random.default_rng(3).integers(0, 256, (50, 5), np.uint8)
    wanted, _ = model.predict(bytes_, deterministic=True)
    ours = bytes_.astype(np.float32) / 255
    found = imported(path, behavior([vector(5)]))(ours)[contract.DETERMINISTIC_CONTINUOUS]
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    assert len(np.unique(wanted, axis=0)) > 10
    statistics = ObservationStatistics(torch.full((5,), 100.0), torch.full((5,), 50.0**2), clip=2.0, count=10.0)
    normalized = ((bytes_.astype(np.float32) - 100) / 50).clip(-2, 2)
    wanted, _ = model.predict(normalized, deterministic=True)
    normalizing = imported(path, behavior([vector(5)]), Hints(statistics=statistics))(ours)
    np.testing.assert_allclose(normalizing[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=2e-5)


@pytest.mark.parametrize("statistics", [None, ObservationStatistics(torch.ones(5), torch.full((5,), 9.0), count=7.0)])
def test_a_run_of_a_policy_on_bytes(statistics: ObservationStatistics | None, tmp_path: Path) -> None:
    spec = behavior([vector(5)])
    policy = read(saved(make("PPO", CODES, BOX, policy_kwargs={"net_arch": [7, 7]}), tmp_path))
    actor = fitted_actor(policy, Hints(statistics=statistics), spec)
    own, _ = own_actor(policy, actor, statistics, spec)
    obs, mask, memory = [torch.rand(20, 5)], torch.zeros(20, 0, dtype=torch.bool), torch.zeros(20, 0)
    with torch.inference_mode():
        wanted = actor.distribution(obs, mask, memory)[0].deterministic().continuous
        found = own.distribution(obs, mask, memory)[0].deterministic().continuous
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


MIXED = spaces.Dict(
    {
        "camera": BYTES,
        "bytes": CODES,
        "wide": spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([1.0, 2.0], np.float32)),
        "deep": FLOATS,
    }
)


def seen_in_dict(spread: float, rows: int = 300) -> tuple[BehaviorSpec, dict[str, Array], list[Array]]:
    """Sensors of MIXED in another order, and observations as the model and as Unity has them."""
    generator = np.random.default_rng(3)
    theirs: dict[str, Array] = {
        "camera": generator.integers(0, 256, (rows, 3, 40, 44), np.uint8),
        "bytes": generator.integers(0, 256, (rows, 5), np.uint8),
        "wide": generator.standard_normal((rows, 2), np.float32) * spread,
        "deep": generator.random((rows, 3, 40, 44), np.float32),
    }
    spec = behavior([vector(2, "wide"), camera(3, 40, 44, "deep"), camera(3, 40, 44, "camera"), vector(5, "bytes")])
    names = [sensor.name for sensor in spec.observation_specs]
    ours = [theirs[name].astype(np.float32) / (255 if theirs[name].dtype == np.uint8 else 1) for name in names]
    return spec, theirs, ours


def balanced(model: Any) -> Any:
    """Every part matters, and none drives the actions to their bounds."""
    with torch.no_grad():
        for name, parameter in model.policy.named_parameters():
            if "cnn" in name or "linear" in name:
                parameter.mul_(2.0)
            else:
                parameter.mul_(0.3)
    return model


def actions_of(model: Any, theirs: dict[str, Array], unlike: float) -> Array:
    """What it does, after a look at whether each part alone changes that."""
    wanted: Array = model.predict(theirs, deterministic=True)[0]
    for name, values in theirs.items():
        other = model.predict({**theirs, name: values[::-1]}, deterministic=True)[0]
        assert np.abs(other - wanted).max() > unlike, name
    return wanted


@pytest.mark.parametrize("name", ["PPO", "apart", "SAC", "TD3"])
def test_every_part_of_a_dict_is_seen_as_it_was(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {**SMALL, "share_features_extractor": False} if name == "apart" else dict(SMALL)
    model = balanced(make("PPO" if name == "apart" else name, MIXED, BOX, "MultiInputPolicy", policy_kwargs=options))
    spec, theirs, ours = seen_in_dict(3.0)
    wanted = actions_of(model, theirs, 1e-3)
    act = imported(saved(model, tmp_path), spec, Hints(image_scale=1.0))
    np.testing.assert_allclose(act(*ours)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=2e-5)
    assert np.abs(wanted).max() < 0.99


def test_all_choices_from_a_dict_are_the_same(tmp_path: Path) -> None:
    model = balanced(make("DQN", MIXED, spaces.Discrete(4), "MultiInputPolicy", policy_kwargs=SMALL))
    spec, theirs, ours = seen_in_dict(30.0)
    wanted = actions_of(model, theirs, 0)
    act = imported(saved(model, tmp_path), behavior(spec.observation_specs, 0, (4,)), Hints(image_scale=1.0))
    np.testing.assert_array_equal(act(*ours)[contract.DETERMINISTIC_DISCRETE][:, 0], wanted)


@pytest.mark.parametrize(
    "shown",
    ["OrderedDict([('b', {}), ('a', {})])", "OrderedDict({{'b': {}, 'a': {}}})", '{{"b": {}, "a": {}}}'],
)
def test_every_form_of_a_dict_in_a_file(shown: str, tmp_path: Path) -> None:
    text = shown.format("Box([0 1], [3 4], (2,), int64)", "Box(0, 255, (3,), uint8)")
    path = changed(
        saved(make("PPO", TWO, BOX, "MultiInputPolicy"), tmp_path),
        lambda data: data["observation_space"].update(spaces=text),
    )
    found = read(path)
    assert [(part.name, part.observed, part.scale) for part in found.parts] == [("b", (2,), None), ("a", (3,), 255.0)]


def test_a_dict_of_very_many_entries_is_refused_before_they_are_looked_for(tmp_path: Path) -> None:
    text = "{" + ", ".join(f"'{number}': Box(0, 1, (1,), float32)" for number in range(5000)) + "}"
    path = changed(
        saved(make("PPO", TWO, BOX, "MultiInputPolicy"), tmp_path),
        lambda data: data["observation_space"].update(spaces=text),
    )
    message = refused(path, behavior([vector(5)]))
    assert "expected a Dict of only Box" in message
    assert len(message) < 500


def test_a_single_entry_of_a_dict_fits_a_single_sensor_of_another_name(tmp_path: Path) -> None:
    model = make("PPO", spaces.Dict({"obs": VECTOR}), BOX, "MultiInputPolicy")
    (rows,) = observations(6, (5,))
    wanted, _ = model.predict({"obs": rows}, deterministic=True)
    found = imported(saved(model, tmp_path), behavior([vector(5)]))(rows)
    np.testing.assert_allclose(found[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def test_a_run_of_a_policy_on_a_dict(tmp_path: Path) -> None:
    """Its sensors come in another order than the entries."""
    space = spaces.Dict({"a": VECTOR, "b": CODES})
    spec = behavior([vector(5, "b"), vector(5, "a")])
    policy = read(saved(make("PPO", space, BOX, "MultiInputPolicy", policy_kwargs={"net_arch": [7, 7]}), tmp_path))
    actor = fitted_actor(policy, NOTHING, spec)
    own, _ = own_actor(policy, actor, None, spec)
    obs = [torch.rand(20, 5), torch.randn(20, 5)]
    mask, memory = torch.zeros(20, 0, dtype=torch.bool), torch.zeros(20, 0)
    with torch.inference_mode():
        wanted = actor.distribution(obs, mask, memory)[0].deterministic().continuous
        found = own.distribution(obs, mask, memory)[0].deterministic().continuous
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


def test_what_a_file_tells(tmp_path: Path) -> None:
    model = make("SAC", VECTOR, BOX, policy_kwargs=SMALL)
    model.num_timesteps = 1234
    found = read(saved(model, tmp_path))
    assert (found.trainer, found.step, found.parts[0].observed) == ("SAC of Stable-Baselines3", 1234, (5,))
    assert found.head.kind is HeadKind.SQUASHED


def changed(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A model whose description is another one."""
    other = path.with_name("changed.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "data":
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            target.writestr(name, content)
    return other


def test_no_pickle_is_opened(tmp_path: Path) -> None:
    """Those of everything that is not plain data are broken here, and nothing notices."""
    model = make("PPO", VECTOR, BOX, policy_kwargs={**SMALL, "activation_fn": torch.nn.ReLU})

    def spoil(data: dict[str, Any]) -> None:
        for value in data.values():
            if isinstance(value, dict) and ":serialized:" in value:
                value[":serialized:"] = "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAVmYWxzZZSFlFKULg=="

    path = changed(saved(model, tmp_path), spoil)
    _, theirs, ours = seen(VECTOR)
    act = imported(path, behavior([vector(5)]))
    wanted, _ = model.predict(theirs, deterministic=True)
    np.testing.assert_allclose(act(ours)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def refused(path: Path, spec: BehaviorSpec, hints: Hints = NOTHING) -> str:
    with pytest.raises(CheckpointError) as caught:
        fitted(path, spec, hints)
    return str(caught.value)


def pickled_only(data: dict[str, Any]) -> None:
    data["policy_kwargs"] = {":type:": "<class 'dict'>", ":serialized:": "gAR9lC4="}


def own_activation(data: dict[str, Any]) -> None:
    data["policy_kwargs"] = {":serialized:": "gAR9lC4=", "activation_fn": "<class 'my.Activation'>"}


@pytest.mark.parametrize("change", [pickled_only, own_activation])
def test_an_activation_that_only_a_pickle_has_is_asked_for(change: Callable[..., None], tmp_path: Path) -> None:
    model = make("PPO", VECTOR, BOX)
    path = changed(saved(model, tmp_path), change)
    assert "Pass --activation, one of tanh, relu, " in refused(path, behavior([vector(5)]))
    _, theirs, ours = seen(VECTOR)
    act = imported(path, behavior([vector(5)]), Hints(activation="tanh"))
    wanted, _ = model.predict(theirs, deterministic=True)
    np.testing.assert_allclose(act(ours)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=1e-5)


def test_bounds_that_a_file_leaves_open_are_asked_for(tmp_path: Path) -> None:
    path = changed(saved(make("PPO", VECTOR, BOX), tmp_path), lambda data: data.pop("action_space"))
    assert "Pass --clip, such as 1" in refused(path, behavior([vector(5)]))
    fitted(path, behavior([vector(5)]), Hints(bounds=(-1.0, 1.0)))


TWO = spaces.Dict({"a": VECTOR, "b": VECTOR})


@pytest.mark.parametrize(
    ("model", "spec", "hints", "message"),
    [
        (
            lambda: make("PPO", VECTOR, BOX),
            behavior([vector(4)]),
            Hints(),
            "it expects 5 numbers, but these agents send",
        ),
        (lambda: make("PPO", VECTOR, BOX), behavior([vector(5)], 3), Hints(), "2 continuous actions, but these agents"),
        (lambda: make("PPO", VECTOR, BOX), behavior([vector(5)], 0, (2,)), Hints(), "it has 2 continuous actions"),
        (lambda: make("PPO", VECTOR, BOX), behavior([vector(5)]), Hints(activation="relu"), "tanh follows each"),
        (lambda: make("PPO", VECTOR, BOX), behavior([vector(5)]), Hints(bounds=(-2, 2)), "within [-1.0, -1.0] and [1"),
        (
            lambda: make("PPO", VECTOR, spaces.MultiDiscrete([2, 3])),
            behavior([vector(5)], 0, (3, 2)),
            Hints(),
            "branches [2, 3], but these agents have 0 continuous actions and the branches [3, 2]",
        ),
        (CONTINUOUS["PPO on pictures"], behavior([camera(3, 40, 40)]), Hints(), "it expects the shape (3, 40, 44)"),
        (CONTINUOUS["PPO on pictures"], behavior([camera(3, 40, 44)]), Hints(image_scale=255.0), "0 to 1, not to 255"),
        (CONTINUOUS["pictures of floats"], behavior([camera(3, 40, 44)]), Hints(), "Pass --image-scale 1 for 0 to 1"),
        (
            lambda: make("PPO", TWO, BOX, "MultiInputPolicy"),
            behavior([vector(5, "a"), vector(5, "c")]),
            Hints(),
            "it expects 'a', 'b', but these agents send 'a' (5,), 'c' (5,)",
        ),
        (
            lambda: make("PPO", spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)}), BOX, "MultiInputPolicy"),
            behavior([vector(5, "a"), vector(3, "b")]),
            Hints(),
            "'b': Discrete(3)}, expected a Dict of only Box",
        ),
        (
            lambda: make("PPO", TWO, BOX, "MultiInputPolicy"),
            behavior([vector(5, "a"), vector(4, "b")]),
            Hints(),
            "it expects 5 numbers, but these agents send 'b' (4,)",
        ),
        (
            lambda: make("PPO", TWO, BOX, "MultiInputPolicy"),
            behavior([vector(5, "a"), vector(5, "b")]),
            Hints(statistics=ObservationStatistics(torch.zeros(10), torch.ones(10))),
            "statistics of a Dict of observations are not supported",
        ),
        (
            CONTINUOUS["PPO on pictures"],
            behavior([camera(3, 40, 44)]),
            Hints(statistics=ObservationStatistics(torch.zeros(5280), torch.ones(5280))),
            "statistics of images are not supported",
        ),
        (
            lambda: make("PPO", VECTOR, spaces.MultiBinary(4)),
            behavior([vector(5)], 0, (4,)),
            Hints(),
            "its action space is a MultiBinary, which is not supported",
        ),
        (
            CONTINUOUS["layers on pixels"],
            behavior([camera(3, 40, 44)]),
            Hints(statistics=ObservationStatistics(torch.zeros(5280), torch.ones(5280))),
            "statistics of images are not supported",
        ),
        (
            lambda: make("SAC", VECTOR, BOX, use_sde=True, policy_kwargs={"clip_mean": 1.0}),
            behavior([vector(5)]),
            Hints(),
            "its clip_mean is not 2.0, the only supported value",
        ),
        (
            lambda: make("PPO", VECTOR, BOX, use_sde=True, policy_kwargs={"squash_output": True}),
            behavior([vector(5)]),
            Hints(),
            "squash_output=True",
        ),
    ],
)
def test_what_does_not_fit(
    model: Callable[[], Any], spec: BehaviorSpec, hints: Hints, message: str, tmp_path: Path
) -> None:
    assert message in refused(saved(model(), tmp_path), spec, hints)


class Extractor(sb3.common.torch_layers.FlattenExtractor):  # type: ignore[misc, name-defined]
    """One's own."""


class OwnPolicy(sb3.common.policies.ActorCriticPolicy):  # type: ignore[misc, name-defined]
    """One's own."""


def test_classes_of_ones_own(tmp_path: Path) -> None:
    model = make("PPO", VECTOR, BOX, policy_kwargs={"features_extractor_class": Extractor})
    assert "features_extractor_class is <class" in refused(saved(model, tmp_path), behavior([vector(5)]))
    model = sb3.PPO(OwnPolicy, World(VECTOR, BOX), device="cpu")
    assert "its policy is a custom class (from the module 'tests." in refused(
        saved(model, tmp_path), behavior([vector(5)])
    )


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("sb3_contrib.ars.policies", "a policy of ARS, which is not supported"),
        ("sb3_contrib.common.recurrent.policies", "a policy of RecurrentPPO, which is not supported"),
        ("sb3_contrib.new.policies", "a custom class (from the module 'sb3_contrib.new.policies')"),
    ],
)
def test_policies_that_are_not_on_the_list(module: str, message: str, tmp_path: Path) -> None:
    path = changed(
        saved(make("PPO", VECTOR, BOX), tmp_path), lambda data: data["policy_class"].update(__module__=module)
    )
    assert message in refused(path, behavior([vector(5)]))


def act_as(model: Any, folder: Path, module: str, **more: object) -> Path:
    """The model as sb3-contrib saves one with the same networks."""

    def change(data: dict[str, Any]) -> None:
        data["policy_class"].update(__module__=module)
        data.update(more)

    return changed(saved(model, folder), change)


@pytest.mark.parametrize(
    ("name", "options", "module", "more", "trainer"),
    [
        ("PPO", {}, "stable_baselines3.common.policies", {"cg_max_steps": 15}, "TRPO of sb3-contrib"),
        ("SAC", SMALL, "sb3_contrib.tqc.policies", {"top_quantiles_to_drop_per_net": 2}, "TQC of sb3-contrib"),
    ],
)
def test_continuous_policies_of_sb3_contrib(
    name: str, options: dict[str, Any], module: str, more: dict[str, object], trainer: str, tmp_path: Path
) -> None:
    model = make(name, VECTOR, BOX, policy_kwargs=options)
    path = act_as(model, tmp_path, module, **more)
    assert read(path).trainer == trainer
    spec, theirs, ours = seen(VECTOR)
    wanted, _ = model.predict(theirs, deterministic=True)
    np.testing.assert_allclose(imported(path, spec)(ours)[contract.DETERMINISTIC_CONTINUOUS], wanted, atol=2e-5)


def test_maskable_policies_of_sb3_contrib_choose_among_what_is_allowed(tmp_path: Path) -> None:
    model = make("PPO", VECTOR, spaces.Discrete(4))
    path = act_as(model, tmp_path, "sb3_contrib.common.maskable.policies")
    assert read(path).trainer == "MaskablePPO of sb3-contrib"
    spec, theirs, ours = seen(VECTOR)
    allowed = np.random.default_rng(3).random((len(ours), 4)) < 0.5
    allowed[:, 2] = True
    with torch.inference_mode():
        logits = model.policy.get_distribution(torch.from_numpy(theirs)).distribution.logits.numpy()
    act = imported(path, behavior(spec.observation_specs, 0, (4,)))
    found = act(ours, allowed=allowed)[contract.DETERMINISTIC_DISCRETE][:, 0]
    np.testing.assert_array_equal(found, np.where(allowed, logits, -np.inf).argmax(1))


def with_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    other = path.with_name("weights.zip")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(other, "w") as target:
        weights = torch.load(io.BytesIO(source.read("policy.pth")), weights_only=True)
        change(weights)
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        target.writestr("policy.pth", buffer.getvalue())
        target.writestr("data", source.read("data"))
    return other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update(extra=torch.zeros(3)), "unsupported layers: extra"),
        (lambda w: w.pop("action_net.bias"), ""),
        (lambda w: w.update({"action_net.bias": torch.zeros(3)}), "action_net.bias has the shape (3,), expected (2,)"),
        (lambda w: w.update({"action_net.weight": torch.zeros(2)}), "which is not that of a linear layer"),
        (lambda w: w.update(log_std=torch.zeros(5)), "log_std has the shape (5,)"),
        (lambda w: w.update(log_std=torch.tensor([np.nan, 0.0])), "NaN"),
        (lambda w: w.pop("mlp_extractor.policy_net.0.weight"), "no mlp_extractor.policy_net.0.weight"),
        (lambda w: w.update({"mlp_extractor.policy_net.3.weight": torch.zeros(2, 2)}), "are at [0, 2, 3]; expected"),
        (lambda w: w.update({"mlp_extractor.policy_net.2.weight": torch.zeros(64, 9)}), "its layers do not accept"),
        (lambda w: w.update({"action_net.weight": torch.zeros(2, 9)}), "last layer expects 9 numbers"),
        (lambda w: w.clear(), "expected the weights of a network"),
    ],
)
def test_damaged_weights(change: Callable[..., object], message: str, tmp_path: Path) -> None:
    path = with_weights(saved(make("PPO", VECTOR, BOX), tmp_path), change)
    if message:
        assert message in refused(path, behavior([vector(5)]))
    else:
        fitted(path, behavior([vector(5)]))


def test_a_file_that_was_cut_off(tmp_path: Path) -> None:
    path = saved(make("PPO", VECTOR, BOX), tmp_path)
    whole = path.read_bytes()
    behind_the_inner_file = whole.index(b"PK\x05\x06") + 22
    for length in (0, 100, len(whole) // 2, behind_the_inner_file, len(whole) - 30):
        path.write_bytes(whole[:length])
        assert "it is damaged, or not a file of weights" in refused(path, behavior([vector(5)]))


def test_gsde_that_only_a_pickle_describes(tmp_path: Path) -> None:
    path = changed(saved(CONTINUOUS["PPO with gSDE"](), tmp_path), pickled_only)
    hints = Hints(activation="tanh")
    assert "so it is unknown how it uses gSDE" in refused(path, behavior([vector(5)]), hints)
