"""Benchmarks of SAC and XQC: gradient updates, the replay, and 3DBall end to end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import yaml
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

from scripts.benchmarks.ppo import Case, train
from scripts.benchmarks.report import RUNS, Row, interleaved
from tests.experience.packing import packed_steps
from tests.learning.algos.minibatches import minibatch_of
from trajtrainer.core.timers import Timers
from trajtrainer.experience import npz
from trajtrainer.experience.replay import Replay, rows_for
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.rewards.signal import create_reward_signals
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.run.device import keep_freed_memory
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import trainer_settings

OBSERVATIONS, ACTIONS = 8, 2
NETWORKS = ((64, 2), (128, 2), (256, 3))  # hidden_units, num_layers
BATCHES = (64, 256)
STEPS = 1_000_000
HORIZON = 1000
_SECONDS = 1.0  # duration of one measurement


def _shipped(name: str, agents: int, max_steps: int, bar: float) -> Case:
    """Return a case with a shipped configuration, for fewer steps."""
    path = f"config/sac/{name}.yaml"
    settings = yaml.safe_load((Path(__file__).resolve().parents[2] / path).read_text())["behaviors"][name]
    return Case(
        f"SAC, {path}, {agents} agents",
        [f"sim:{name}"],
        settings.pop("hyperparameters"),
        settings.pop("network_settings"),
        settings.pop("time_horizon"),
        settings.pop("summary_freq"),
        max_steps,
        bar,
        extra={key: value for key, value in settings.items() if key != "max_steps"},
    )


BALL = _shipped("3DBall", agents=12, max_steps=72000, bar=2460)


def measure() -> list[Row]:
    torch.set_num_threads(1)
    keep_freed_memory()  # as in a run
    return [*_updates(), *_of_half_cheetah(), *_replay(), Row(BALL.name, "agent-steps/s", _ends(), BALL.bar)]


def _spec() -> BehaviorSpec:
    sensor = ObservationSpec((OBSERVATIONS,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    return BehaviorSpec([sensor], ActionSpec(ACTIONS, ()))


# Gradient updates


def _updates() -> list[Row]:
    """Measure gradient updates in which the value networks are computed one by one, and together."""
    cases = [
        (f"SAC update, {hidden}x{layers}, batch {size}, {way}", _sac(hidden, layers, stacked=stacked), _batch(size))
        for hidden, layers in NETWORKS
        for size in BATCHES
        for way, stacked in (("networks one by one", False), ("networks together", True))
    ]
    figures = interleaved(
        [partial(_per_second, partial(sac.gradient_step, batch, 3e-4)) for _, sac, batch in cases], RUNS
    )
    return [Row(name, "updates/s", runs) for (name, _, _), runs in zip(cases, figures, strict=True)]


def _sac(hidden: int, layers: int, *, stacked: bool) -> SAC:
    network = NetworkSettings(normalize=True, hidden_units=hidden, num_layers=layers)
    settings = TrainerSettings(trainer_type="sac", hyperparameters=SACHyperparameters(), network_settings=network)
    context = _context(_spec(), settings)
    with mock.patch("trajtrainer.learning.algos.sac.networks.LARGEST", 1_000_000 if stacked else 0):
        return SAC(context, SAC.make_networks(context), create_reward_signals(context.spec, settings, context.device))


def _context(spec: BehaviorSpec, settings: TrainerSettings) -> LearningContext:
    return LearningContext(
        behavior="B",
        spec=spec,
        settings=settings,
        obs_dtypes=[np.dtype(np.float32)],
        seed=0,
        device=torch.device("cpu"),
        training=False,
        timers=Timers(),
        is_stopping=lambda: False,
    )


def _batch(size: int, observations: int = OBSERVATIONS, actions: int = ACTIONS) -> Minibatch:
    generator = torch.Generator().manual_seed(0)
    nothing = torch.zeros(size, 0)
    return minibatch_of(
        obs=(torch.randn(size, observations, generator=generator),),
        next_obs=(torch.randn(size, observations, generator=generator),),
        mask=nothing.bool(),
        next_mask=nothing.bool(),
        continuous=torch.rand(size, actions, generator=generator) * 2 - 1,
        discrete=nothing.long(),
        rewards=torch.randn(1, size, generator=generator),
        discount=torch.full((1, size), 0.99),
        noise=torch.randn(size, actions, generator=generator),
        next_noise=torch.randn(size, actions, generator=generator),
    )


# Updates of SAC and XQC per environment step, with the configurations and shapes of HalfCheetah


def _of_half_cheetah() -> list[Row]:
    batch = _batch(256, 17, 6)
    configurations = {"SAC": _configured("sac"), "XQC": _configured("xqc")}
    figures = interleaved([partial(_cpu_ms, one, batch) for one in configurations.values()], RUNS)
    rows = []
    for name, runs in zip(configurations, figures, strict=True):
        title = f"{name}, config/{name.lower()}/HalfCheetah.yaml: updates"
        rows.append(Row(title, "CPU ms per step", runs))
    ratios = [xqc / sac for sac, xqc in zip(*figures, strict=True)]
    return [*rows, Row("updates per step of HalfCheetah, XQC / SAC", "times", ratios, bar=3)]


def _configured(name: str) -> SAC:
    text = (Path(__file__).resolve().parents[2] / "config" / name / "HalfCheetah.yaml").read_text(encoding="utf-8")
    (mapping,) = yaml.safe_load(text)["behaviors"].values()
    sensor = ObservationSpec((17,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    context = _context(BehaviorSpec([sensor], ActionSpec(6, ())), trainer_settings(mapping))
    algorithm = create_algorithm(context)
    assert isinstance(algorithm, SAC)
    return algorithm


def _cpu_ms(algorithm: SAC, batch: Minibatch) -> float:
    """Return the CPU time of the updates per environment step, averaged over 30 updates."""
    hyper = algorithm.context.settings.hyperparameters
    assert isinstance(hyper, SACHyperparameters)
    begin_s = time.process_time()
    for number in range(30):
        algorithm.gradient_step(batch, 3e-4, of_policy=number % hyper.policy_delay == 0)
    return 1000 * (time.process_time() - begin_s) / 30 / hyper.steps_per_update


def _per_second(work: Callable[[], object]) -> float:
    work()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < _SECONDS:
        work()
        count += 1
    return count / (time.perf_counter() - begin)


# Replay


def _replay() -> list[Row]:
    """Measure sampling, memory usage and saving of a full replay of a million steps."""
    replay = Replay(_spec(), [np.float32], num_rows=rows_for(STEPS, HORIZON))
    packed = _trajectories(50)
    while not replay.is_full:
        replay.add(packed)
    generator = torch.Generator().manual_seed(0)

    def draw() -> None:
        replay.sample(torch.randint(replay.num_sequences, (256,), generator=generator).numpy())

    saved = [_save(replay) for _ in range(RUNS)]
    return [
        Row("drawing 256 of 1,000,000 steps x 8 floats", "µs", [1e6 / _per_second(draw) for _ in range(RUNS)], 50),
        Row("replay of 1,000,000 steps x 8 floats", "MB", [replay.num_bytes / 1e6], 150),
        Row("saving it: the trainer waits, per 100 MB", "s", saved, 1),
    ]


def _trajectories(count: int) -> PackedSteps:
    steps, random = count * HORIZON, np.random.default_rng(0)
    nothing, nobody = np.zeros(steps, np.float32), np.zeros(steps, np.bool_)
    return packed_steps(
        obs=(random.standard_normal((steps, OBSERVATIONS), np.float32),),
        mask=np.zeros((steps, 0), np.bool_),
        continuous=np.zeros((steps, ACTIONS), np.float32),
        discrete=np.zeros((steps, 0), np.int32),
        log_prob=np.zeros((steps, ACTIONS), np.float32),
        memory=np.zeros((steps, 0), np.float32),
        reward=nothing,
        group_reward=nothing,
        group=np.zeros(steps, np.int32),
        done=nobody,
        interrupted=nobody,
        version=np.zeros(steps, np.int32),
        bootstrap_obs=(random.standard_normal((count, OBSERVATIONS), np.float32),),
        bootstrap_memory=np.zeros((count, 0), np.float32),
        offset=np.arange(count + 1, dtype=np.int32) * np.int32(HORIZON),
        terminated=nobody[:count],
        ended=nobody[:count],
        agent=np.arange(count),
    )


def _save(replay: Replay) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay.npz"
        begin = time.perf_counter()
        npz.write_replay(replay, path)
        return (time.perf_counter() - begin) / (path.stat().st_size / 100e6)


def _ends() -> list[float]:
    return [train(BALL).steps_per_second for _ in range(RUNS)]
