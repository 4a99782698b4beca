"""Hypothesis strategies for whole settings objects."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.ppo.settings import OnPolicy, PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.learning.rewards.settings import CuriositySettings, GailSettings, RndSettings
from trajtrainer.settings.components import ALGORITHMS, Hyperparameters, RewardSignalSettings, ScheduleType
from trajtrainer.settings.environment import (
    CompletionCriteria,
    ConstantSettings,
    EngineSettings,
    EnvironmentParameterSettings,
    EnvironmentSettings,
    GaussianSettings,
    Lesson,
    Measure,
    MultiRangeUniformSettings,
    UniformSettings,
)
from trajtrainer.settings.evaluation import BehaviorEvaluationSettings, EvaluationSettings, StopSettings
from trajtrainer.settings.network import (
    ENCODERS,
    Activation,
    ConditioningType,
    Initialization,
    MemorySettings,
    NetworkSettings,
)
from trajtrainer.settings.run import CheckpointSettings, RunSettings, TorchSettings
from trajtrainer.settings.trainer import BehavioralCloningSettings, SelfPlaySettings, TrainerSettings

booleans = st.booleans()
counts = st.integers(1, 10**9)
batch_sizes = st.integers(64, 10**6)  # not below the longest sequence
numbers = st.floats(-1e12, 1e12)
not_negative = st.floats(0, 1e6)
above_zero = st.floats(1e-300, 1e6)
fractions = st.floats(0, 1)
seeds = st.integers(-1, 2**31 - 1)
schedules = st.sampled_from([ScheduleType.CONSTANT, ScheduleType.LINEAR, ScheduleType.COSINE])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = texts.filter(bool)


def networks(memories: st.SearchStrategy[MemorySettings | None]) -> st.SearchStrategy[NetworkSettings]:
    return st.builds(
        NetworkSettings,
        normalize=booleans,
        hidden_units=counts,
        num_layers=counts,
        vis_encode_type=st.sampled_from(list(ENCODERS.builtin)),
        memory=memories,
        goal_conditioning_type=st.sampled_from(ConditioningType),
        deterministic=booleans,
        activation=st.sampled_from(Activation),
        initialization=st.sampled_from(Initialization),
        clip_obs=above_zero,
        normalizer_prior=st.floats(1e-6, 1),
        clip_actions=above_zero,
        log_std_init=st.floats(-20, 2),
        use_sde=booleans,
        sde_sample_freq=st.just(-1) | counts,
    )


memories = st.builds(
    MemorySettings, sequence_length=st.integers(1, 64), memory_size=st.integers(1, 10**6).map(lambda half: 2 * half)
)
signal = {"gamma": fractions, "strength": numbers, "network_settings": networks(st.none())}
learned: dict[str, Any] = {**signal, "learning_rate": not_negative, "encoding_size": st.none() | counts}


def signals_of(trainer_type: str) -> st.SearchStrategy[dict[str, RewardSignalSettings]]:
    bonus = st.none() if ALGORITHMS[trainer_type].replays else st.none() | above_zero
    novelty: dict[str, Any] = {**learned, "normalize": booleans, "episodic_bonus": bonus}
    gail = st.builds(GailSettings, **learned, use_actions=booleans, use_vail=booleans, demo_path=texts)
    optional = {
        "extrinsic": st.builds(RewardSignalSettings, **signal),
        "curiosity": st.builds(CuriositySettings, **novelty),
        "gail": gail,
        "rnd": st.builds(RndSettings, **novelty),
    }
    return st.fixed_dictionaries({}, optional=optional).filter(bool)


on_policy: dict[str, Any] = {
    "batch_size": batch_sizes,
    "buffer_size": counts,
    "learning_rate": not_negative,
    "beta": not_negative,
    "epsilon": above_zero,
    "lambd": fractions,
    "num_epoch": counts,
    "learning_rate_schedule": st.sampled_from(ScheduleType),
    "beta_schedule": schedules,
    "epsilon_schedule": schedules,
    "joint_ratio": booleans,
    "joint_entropy": booleans,
    "normalize_advantage_per_mini_batch": booleans,
    "normalize_after_update": booleans,
    "norm_reward": booleans,
    "clip_reward": above_zero,
    "max_grad_norm": st.none() | above_zero,
    "target_kl": st.none() | above_zero,
    "value_clipping": booleans,
    "vf_coef": not_negative,
    "adam_eps": above_zero,
    "desired_kl": above_zero,
}
no_correction: dict[str, Any] = {}
corrections = st.just(no_correction) | st.tuples(above_zero, above_zero).map(
    lambda limits: {"v_trace": True, "c_bar": min(limits), "rho_bar": max(limits)}
)


def corrected(hyper: st.SearchStrategy[OnPolicy]) -> st.SearchStrategy[OnPolicy]:
    return st.builds(lambda each, correction: evolve(each, **correction), hyper, corrections)


off_policy: dict[str, Any] = {
    "learning_rate": not_negative,
    "learning_rate_schedule": schedules,
    "batch_size": batch_sizes,
    "buffer_size": counts,
    "buffer_init_steps": st.integers(0, 10**9),
    "tau": fractions,
    "steps_per_update": above_zero | st.just("auto"),
    "save_replay_buffer": booleans,
    "init_entcoef": above_zero,
    "reward_signal_steps_per_update": above_zero,
    "learning_starts": st.integers(0, 10**9),
    "ent_coef": st.none() | above_zero,
    "target_entropy": st.none() | numbers,
    "value_network": booleans,
    "policy_delay": counts,
    "layer_norm": booleans,
    "dropout_rate": st.floats(0, 0.9),
}
hyperparameters = {
    "ppo": corrected(st.builds(PPOHyperparameters, **on_policy, shared_critic=booleans)),
    "poca": corrected(st.builds(POCAHyperparameters, **on_policy)),
    "sac": st.builds(SACHyperparameters, **off_policy),
}
self_play = st.builds(
    SelfPlaySettings,
    save_steps=counts,
    team_change=counts,
    swap_steps=counts,
    window=counts,
    play_against_latest_model_ratio=numbers,
    initial_elo=numbers,
    prioritized=booleans,
    opponents=st.lists(texts, max_size=2),
    elo_per_match=booleans,
)
cloning = st.builds(
    BehavioralCloningSettings,
    demo_path=texts,
    steps=st.integers(0, 10**9),
    strength=not_negative,
    samples_per_update=st.integers(0, 10**9),
    num_epoch=st.none() | counts,
    batch_size=st.none() | counts,
)

evaluation_of_behavior = st.builds(
    BehaviorEvaluationSettings, interval=counts, episodes=counts, deterministic=st.none() | booleans
)
stop = st.builds(
    StopSettings,
    reward=st.none() | numbers,
    patience=st.none() | counts,
    time=st.none() | above_zero,
    episodes=st.none() | counts,
    gradient_steps=st.none() | counts,
)


def without_bonus(trainer: TrainerSettings) -> TrainerSettings:
    """Nothing that SAC cannot do."""
    signals = {
        name: evolve(one, episodic_bonus=None) if isinstance(one, CuriositySettings | RndSettings) else one
        for name, one in trainer.reward_signals.items()
    }
    return evolve(trainer, reward_signals=signals)


def of_groups(network: NetworkSettings) -> NetworkSettings:
    return evolve(network, hidden_units=4 * network.hidden_units)


def trainers_of(
    trainer_type: str, own: st.SearchStrategy[Hyperparameters] | None = None
) -> st.SearchStrategy[TrainerSettings]:
    return st.builds(
        TrainerSettings,
        trainer_type=st.just(trainer_type),
        hyperparameters=hyperparameters[trainer_type] if own is None else own,
        checkpoint_interval=counts,
        network_settings=networks(st.none() | memories).map(of_groups if trainer_type == "poca" else lambda one: one),
        reward_signals=signals_of(trainer_type),
        init_path=st.none() | texts,
        keep_checkpoints=st.integers(1, 10**6),
        even_checkpoints=booleans,
        max_steps=counts,
        time_horizon=counts,
        summary_freq=counts,
        threaded=booleans,
        self_play=st.none() | self_play,
        behavioral_cloning=st.none() | cloning,
        evaluation=st.none() | evaluation_of_behavior,
        stop=st.none() | stop,
        keep_best=st.integers(0, 10),
    )


trainers = st.sampled_from(sorted(hyperparameters)).flatmap(trainers_of)

samplers = st.one_of(
    st.builds(ConstantSettings, seed=seeds, value=numbers),
    st.builds(UniformSettings, seed=seeds, min_value=st.floats(-5, 0), max_value=st.floats(0, 5)),
    st.builds(GaussianSettings, seed=seeds, mean=numbers, st_dev=not_negative),
    st.builds(
        MultiRangeUniformSettings,
        seed=seeds,
        intervals=st.lists(st.tuples(st.floats(-5, 0), st.floats(0, 5)), min_size=1, max_size=3),
    ),
)
evaluation_of_run = st.builds(
    EvaluationSettings,
    interval=counts,
    episodes=counts,
    deterministic=booleans,
    env_args=st.none() | st.lists(texts, max_size=3),
    environment_parameters=st.none() | st.dictionaries(texts, samplers, max_size=2),
    seed=seeds,
    num_envs=counts,
)
criteria = st.builds(
    CompletionCriteria,
    behavior=texts,
    measure=st.sampled_from(
        [Measure.REWARD, Measure.GROUP_REWARD, Measure.PROGRESS]
    ),  # a rating needs a behavior with self-play
    min_lesson_length=st.integers(0, 10**6),
    signal_smoothing=booleans,
    threshold=fractions,
    require_reset=booleans,
)
curricula = st.builds(
    lambda lessons, last: EnvironmentParameterSettings([*lessons, last]),
    st.lists(st.builds(Lesson, name=texts, value=samplers, completion_criteria=criteria), max_size=2),
    st.builds(Lesson, name=texts, value=samplers, completion_criteria=st.none() | criteria),
)


def with_the_default_signals(run: RunSettings) -> RunSettings:
    """A behavior always has the reward signals of the defaults, as maps are merged."""
    if run.default_settings is None:
        return run
    if any(ALGORITHMS[behavior.trainer_type].replays for behavior in run.behaviors.values()):
        run = evolve(run, default_settings=without_bonus(run.default_settings))
    assert run.default_settings is not None
    signals = run.default_settings.reward_signals
    behaviors = {
        name: evolve(behavior, reward_signals=signals | behavior.reward_signals)
        for name, behavior in run.behaviors.items()
    }
    return evolve(run, behaviors=behaviors)


runs = st.builds(
    RunSettings,
    default_settings=st.none() | trainers,
    behaviors=st.dictionaries(texts, trainers, max_size=2),
    env_settings=st.builds(
        EnvironmentSettings,
        env_path=texts,
        env_args=st.none() | st.lists(texts, max_size=3),
        base_port=st.integers(1, 60000),
        num_envs=st.integers(1, 5000),
        num_areas=counts,
        timeout_wait=counts,
        python_timeout=st.integers(-1, 100),
        seed=seeds,
        max_lifetime_restarts=st.integers(-1, 100),
        restarts_rate_limit_n=st.integers(-1, 100),
        restarts_rate_limit_period_s=counts,
        listen_address=names,
    ),
    engine_settings=st.builds(
        EngineSettings,
        width=counts,
        height=counts,
        quality_level=st.integers(-5, 5),
        time_scale=above_zero,
        target_frame_rate=st.integers(-1, 1000),
        capture_frame_rate=st.integers(0, 1000),
        no_graphics=booleans,
        no_graphics_monitor=booleans,
    ),
    environment_parameters=st.none() | st.dictionaries(texts, curricula, max_size=2),
    evaluation=st.none() | evaluation_of_run,
    checkpoint_settings=st.builds(
        CheckpointSettings,
        run_id=names,
        initialize_from=st.none() | texts,
        load_model=booleans,
        resume=booleans,
        force=booleans,
        train_model=booleans,
        inference=booleans,
        results_dir=names,
    ),
    torch_settings=st.builds(TorchSettings, device=st.none() | texts),
    debug=booleans,
    deterministic=booleans,
).map(with_the_default_signals)
