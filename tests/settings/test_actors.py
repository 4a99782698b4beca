"""``actors`` of a run: what may stand there, and what is said of the rest."""

from __future__ import annotations

import logging

import pytest

from tests.run.api.test_learn_api import Lamp
from trajtrainer.core.errors import SettingsError
from trajtrainer.run.placement import settings_of_actor
from trajtrainer.run.preflight import check_actors
from trajtrainer.settings.actors import ACTOR_BACKENDS, ActorSettings
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump, load

HEAD = """\
behaviors: {Ball: {trainer_type: sac}}
env_settings: {env_path: sim:3DBall, seed: 10, env_args: [--agents, '3']}
"""


def read(actors: str, head: str = HEAD) -> RunSettings:
    return load(f"{head}actors: {actors}", "a.yaml")


def test_without_the_section_acting_is_in_the_loop_and_nothing_is_dumped() -> None:
    settings = load(HEAD, "a.yaml")
    assert settings.actors is None
    assert not settings.acts_elsewhere
    assert "actors" not in dump(settings)
    assert not read("{backend: inline}").acts_elsewhere


def test_what_is_dumped_is_read_again() -> None:
    settings = read(
        "{count: 3, envs: 2, max_policy_lag: 4, cpu_affinity: [[0], [1]], overrides: [{actor: 1, seed: 5}]}"
    )
    assert settings.actors is not None
    assert (settings.actors.backend, settings.num_players) == ("process", 6)
    assert load(dump(settings), "b.yaml") == settings


def test_an_actor_has_its_own_port_seed_and_what_it_overrides() -> None:
    settings = read(
        "{count: 3, envs: 2, overrides: [{actor: 1, env_args: [--agents, '9']}, {seed: 77}]}",
    )
    found = [settings_of_actor(settings, number).env_settings for number in range(3)]
    assert [(env.num_envs, env.base_port, env.seed) for env in found] == [(2, 5005, 77), (2, 5007, 12), (2, 5009, 77)]
    assert [env.env_args for env in found] == [["--agents", "3"], ["--agents", "9"], ["--agents", "3"]]


@pytest.mark.parametrize(
    ("actors", "told"),
    [
        ("{backend: inline, count: 2}", "actors.count: found 2, expected 1 with backend inline"),
        ("{backend: threads}", f"actors.backend: found 'threads', expected one of {', '.join(ACTOR_BACKENDS)}"),
        ("{count: 0}", "actors.count: found 0, expected a whole number of at least 1"),
        ("{max_policy_lag: -1}", "actors.max_policy_lag: found -1, expected a number of at least 0"),
        ("{cpu_affinity: [[0], []]}", "actors.cpu_affinity: has an empty list of cores"),
        ("{overrides: [{}]}", "actors.overrides.0: changes nothing; expected at least one of env_args, seed"),
        ("{overrides: [{actor: 1, seed: 2}]}", "actors.overrides.0.actor: found 1, expected an actor's number, from 0"),
        ("{overrides: [{seed: 2}, {seed: 3}]}", "actors.overrides.1.actor: already has another entry"),
        ("{overrides: [{actor: 0, sead: 2}]}", "actors.overrides.0.sead: unknown option; did you mean seed?"),
    ],
)
def test_each_mistake_has_its_line_and_its_remedy(actors: str, told: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        read(actors)
    assert told in str(error.value)
    assert "a.yaml" in str(error.value)


def test_the_editor_is_one_environment() -> None:
    with pytest.raises(ConfigurationError, match=r"actors.count: found 2, expected one actor with one environment"):
        read("{count: 2}", "behaviors: {}\n")
    assert read("{count: 1}", "behaviors: {}\n").num_players == 1


def test_noise_is_for_trainers_that_do_not_learn_by_probabilities() -> None:
    noisy = "{overrides: [{exploration_noise: 0.1}]}"
    check_actors(read(noisy))
    with pytest.raises(SettingsError, match=r"Cube \(ppo\) learns from the probabilities"):
        check_actors(read(noisy, "behaviors: {Cube: {}}\n"))


def test_what_the_machine_has_not_is_said_before_anything_starts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trajtrainer.run.preflight.usable_cores", lambda: 4)
    with caplog.at_level(logging.WARNING):
        check_actors(read("{count: 3}"))
        assert not caplog.records
        check_actors(read("{count: 4}"))
    assert "actors.count is 4. With the learner that makes 5 processes on 4 cores" in caplog.text
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    with pytest.raises(
        SettingsError, match=r"has the cores \[7\], which this process may not use. It may use \[0, 1\]"
    ):
        check_actors(read("{cpu_affinity: [[0], [7]]}"))


def test_an_environment_that_cannot_be_sent_to_a_process(tmp_path: object) -> None:
    import trajtrainer

    settings = {"behaviors": {"Lamp": {}}, "actors": {"backend": "process"}}
    with pytest.raises(SettingsError, match=r"cannot be sent to another process.*or backend thread"):
        trajtrainer.learn(settings, lambda: Lamp(), results_dir=str(tmp_path), verbose=False)


def test_defaults() -> None:
    assert ActorSettings() == ActorSettings(backend="process", count=1, max_policy_lag=1)
