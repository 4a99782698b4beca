"""Metrics of runs, over real HTTP and in real files."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from tests.ports import free_port
from tests.prometheus import Samples, parsed
from tests.run.runs import LearnProcess, behaviors_settings, learn, ppo
from trajtrainer.cli.main import main
from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.metrics import HELP, OF_STATISTICS, STD_REWARD
from trajtrainer.core.stats import StatsSummary
from trajtrainer.plugins.metrics import publishing
from trajtrainer.plugins.metrics.publishing import RunMetrics, check_monitoring
from trajtrainer.settings.monitoring import MonitoringSettings
from trajtrainer.settings.yaml.convert import load

LIMIT_S = 300.0


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read().decode()


def port_in(text: str) -> int:
    found = re.search(r"Metrics: http://127\.0\.0\.1:(\d+)/metrics", text)
    return 0 if found is None else int(found[1])


def only(samples: Samples, name: str) -> float:
    ((_, value),) = samples[f"trajtrainer_{name}"]
    return value


class TestRun:
    def test_a_run_publishes_the_same_numbers_at_a_port_in_a_file_and_in_its_log(self, tmp_path: Path) -> None:
        """The last summary is of step 5,000, when the run ends, so the file has it at the end."""
        file = tmp_path / "metrics" / "run.prom"
        file.parent.mkdir()
        process = LearnProcess(
            tmp_path,
            behaviors_settings(Basic=ppo(5000, summary_freq=500)),
            "--env=sim:Basic",
            "--metrics-port=0",
            f"--metrics-file={file}",
            "--log-format=json",
            "--env-args",
            "--agents=8",
        )
        process.wait_for(lambda: port_in(process.output) > 0)
        port = port_in(process.output)
        served: list[Samples] = []

        def has_reward() -> bool:
            with contextlib.suppress(ConnectionError):
                status, headers, text = ask(port)
                assert status == 200
                assert headers["content-type"].startswith("text/plain; version=0.0.4")
                served.append(parsed(text))
            return bool(served) and "trajtrainer_mean_reward" in served[-1]

        process.wait_for(has_reward)
        finished = process.finish()
        assert finished.exit_code == 0, finished.output

        lines = [json.loads(line) for line in finished.output.splitlines()]
        summaries = {line["step"]: line for line in lines if line.get("event") == "summary"}
        assert sorted(summaries) == list(range(500, 5001, 500))
        common = {metric.name for metric in OF_STATISTICS} | {STD_REWARD}
        written = parsed(file.read_text())
        for samples in (served[-1], written):
            line = summaries[only(samples, "step")]
            shown = {name: only(samples, name) for name in common if f"trajtrainer_{name}" in samples}
            assert shown == {name: line[name] for name in common if name in line}
            assert {
                "mean_reward",
                "std_reward",
                "policy_loss",
                "memory_bytes",
                "agent_steps_per_second",
            } <= shown.keys()
            assert only(samples, "max_steps") == 5000
        assert {labels["behavior"] for labels, _ in written["trajtrainer_step"]} == {"Basic"}
        assert served[-1]["trajtrainer_run_state"] == [({"run": "run", "state": "running"}, 1)]
        assert written["trajtrainer_run_state"] == [({"run": "run", "state": "finished"}, 1)]
        assert only(written, "step") == 5000
        assert [path.name for path in file.parent.iterdir()] == ["run.prom"]
        with pytest.raises(OSError, match="refused"):
            ask(port)

        # The messages are the lines that scrapers of ML-Agents' output know.
        told = [line["message"] for line in lines]
        assert told[0].startswith("trajtrainer 0.")
        reward, std = summaries[500]["mean_reward"], summaries[500]["std_reward"]
        line = (
            rf"Basic\. Step: 500\. Time Elapsed: \d+\.\d{{3}} s\. Mean Reward: {reward:.3f}\. Std of Reward: {std:.3f}"
        )
        assert any(re.match(line, text) for text in told)
        (result,) = (line for line in lines if line.get("event") == "result")
        assert result["behavior"] == "Basic"
        assert 5000 <= result["step"] < 5500
        assert all(line["level"] in ("INFO", "WARNING") for line in lines)
        assert "[INFO]" not in finished.output
        assert "INFO [behavior.py" in finished.log

    def test_without_the_option_the_console_is_that_of_mlagents(self, tmp_path: Path) -> None:
        run = learn(tmp_path, behaviors_settings(Basic=ppo(1000)), "--env=sim:Basic")
        assert run.exit_code == 0
        assert re.search(r"^\[INFO\] Basic\. Step: 1000\. Time Elapsed: .* Training\.$", run.output, re.MULTILINE)
        assert "{" not in run.output
        assert "Metrics" not in run.output

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM that a process can handle")
    def test_a_run_that_is_stopped_leaves_its_last_numbers_and_a_free_port(self, tmp_path: Path) -> None:
        file, port = tmp_path / "run.prom", free_port()
        settings = behaviors_settings(Basic=ppo(1_000_000, summary_freq=500)) | {
            "monitoring": {"metrics_port": port, "metrics_file": str(file)}
        }
        process = LearnProcess(tmp_path, settings, "--env=sim:Basic")
        process.wait_for(lambda: file.is_file() and "trajtrainer_step" in file.read_text())
        with socket.create_connection(
            ("127.0.0.1", port), LIMIT_S
        ):  # which sends nothing, and does not hold up the end
            process.send(signal.SIGTERM)
            finished = process.finish()
        assert finished.exit_code == 143, finished.output
        samples = parsed(file.read_text())
        assert samples["trajtrainer_run_state"] == [({"run": "run", "state": "stopped"}, 1)]
        assert only(samples, "step") >= 500
        with socket.create_server(("127.0.0.1", port)):
            pass

    def test_a_run_that_fails_says_so_in_its_file_and_its_last_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "failing.py").write_text(
            "import gymnasium\n"
            "class World(gymnasium.Env):\n"
            "    observation_space = gymnasium.spaces.Box(-1, 1, (2,))\n"
            "    action_space = gymnasium.spaces.Discrete(2)\n"
            "    steps = 0\n"
            "    def reset(self, *, seed=None, options=None):\n"
            "        return self.observation_space.sample(), {}\n"
            "    def step(self, action):\n"
            "        World.steps += 1\n"
            "        if World.steps > 300:\n"
            "            raise RuntimeError('the world ends')\n"
            "        return self.observation_space.sample(), 1.0, World.steps % 10 == 0, False, {}\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        settings = {"default_settings": ppo(5000, summary_freq=100)}
        (tmp_path / "a.yaml").write_text(json.dumps(settings))
        learn = ["learn", str(tmp_path / "a.yaml"), "--env=python:failing:World", f"--results-dir={tmp_path}"]
        code = main([*learn, "--run-id=bad", "--log-format=json", f"--metrics-file={tmp_path / 'bad.prom'}"])
        assert code == 1
        out, err = capsys.readouterr()
        last = [json.loads(line) for line in out.splitlines()][-1]
        assert last["level"] == "ERROR"
        assert "the world ends" in last["message"]
        assert "the world ends" in err
        samples = parsed((tmp_path / "bad.prom").read_text())
        assert samples["trajtrainer_run_state"] == [({"run": "bad", "state": "failed"}, 1)]


class TestFaults:
    def test_everything_that_is_in_the_way_is_found_before_the_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "a.yaml").write_text("behaviors: {Basic: {trainer_type: ppo}}")
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            learn = ["learn", str(tmp_path / "a.yaml"), "--env=sim:Basic", f"--results-dir={tmp_path / 'results'}"]
            assert main([*learn, f"--metrics-port={port}", f"--metrics-file={tmp_path / 'none' / 'a.prom'}"]) == 1
        told = capsys.readouterr().err
        assert f"monitoring.metrics_port: the metrics cannot be served at 127.0.0.1, port {port}" in told
        assert "choose another --metrics-port (0 picks a free one)" in told
        assert f"the folder {tmp_path / 'none'} does not exist" in told
        assert not (tmp_path / "results").exists()

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("metrics_port: 70000", "found 70000, expected a number from 0 to 65535"),
            ("metrics_port: -1", "found -1, expected a number from 0 to 65535"),
            ("metrics_port: a", "metrics_port"),
            ("metrics_file: ''", "expected a file"),
            ("metrics_prt: 1", "did you mean metrics_port"),
        ],
    )
    def test_wrong_values(self, text: str, problem: str) -> None:
        with pytest.raises(SettingsError, match=re.escape(problem)):
            load(f"{{behaviors: {{A: {{}}}}, monitoring: {{{text}}}}}", "a.yaml")

    def test_an_address_that_is_not_ours(self) -> None:
        settings = load("{behaviors: {A: {}}, monitoring: {metrics_port: 0, metrics_address: 203.0.113.7}}", "a.yaml")
        with pytest.raises(SettingsError, match=r"cannot be served at 203\.0\.113\.7, port 0"):
            check_monitoring(settings)

    @pytest.mark.parametrize("address", ["a..b", "x" * 64])
    def test_an_address_that_no_host_can_have(self, address: str) -> None:
        settings = load(f"{{behaviors: {{A: {{}}}}, monitoring: {{metrics_port: 0, metrics_address: {address}}}}}", "a")
        with pytest.raises(SettingsError, match=f"metrics_address: this machine has no address {re.escape(address)} "):
            check_monitoring(settings)

    def test_without_the_extra_one_message_says_so(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publishing, "find_spec", lambda _name: None)
        with pytest.raises(SettingsError, match=r"pip install 'trajtrainer\[metrics\]'\.$"):
            check_monitoring(load("{behaviors: {A: {}}, monitoring: {metrics_port: 0}}", "a.yaml"))

    def test_a_folder_is_no_file(self, tmp_path: Path) -> None:
        settings = load(json.dumps({"behaviors": {"A": {}}, "monitoring": {"metrics_file": str(tmp_path)}}), "a.yaml")
        with pytest.raises(SettingsError, match="it is a folder; expected a file"):
            check_monitoring(settings)

    def test_a_folder_that_may_not_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(atomic, "try_writing", refuse)
        content = {"behaviors": {"A": {}}, "monitoring": {"metrics_file": str(tmp_path / "a.prom")}}
        with pytest.raises(SettingsError, match="cannot be written: Read-only file system"):
            check_monitoring(load(json.dumps(content), "a.yaml"))

    def test_a_check_leaves_the_port_and_the_folder_as_they_were(self, tmp_path: Path) -> None:
        port = free_port()
        content = {"metrics_port": port, "metrics_file": str(tmp_path / "a.prom")}
        settings = load(json.dumps({"behaviors": {"A": {}}, "monitoring": content}), "a.yaml")
        check_monitoring(settings)
        check_monitoring(settings)
        assert list(tmp_path.iterdir()) == []


def make(**changes: Any) -> RunMetrics:
    return RunMetrics("run", MonitoringSettings(**changes))


def port_of(metrics: RunMetrics) -> int:
    assert metrics._server is not None
    return metrics._server.server_port


@pytest.fixture
def server() -> Iterator[RunMetrics]:
    made = make(metrics_port=0)
    yield made
    made.close()


class TestServer:
    @pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 405)])
    def test_requests(self, server: RunMetrics, method: str, status: int) -> None:
        found, _, body = ask(port_of(server), "/metrics", method)
        assert found == status
        assert ("trajtrainer_run_state" in body) == (status == 200)

    @pytest.mark.parametrize("host", ["example.com", "example.com:80", "127.0.0.1.example.com", "[", "10.0.0.1"])
    def test_a_site_cannot_reach_it_by_another_name(self, server: RunMetrics, host: str) -> None:
        assert ask(port_of(server), Host=host)[0] == 421

    @pytest.mark.parametrize("host", ["localhost", "localhost:99", "127.0.0.1", "[::1]:7", ""])
    def test_names_of_this_machine_are_known(self, server: RunMetrics, host: str) -> None:
        assert ask(port_of(server), Host=host)[0] == 200

    def test_where_other_machines_may_read_any_name_will_do(self) -> None:
        server = make(metrics_port=0, metrics_address="0.0.0.0")
        try:
            assert ask(port_of(server), Host="trainer-1")[0] == 200
        finally:
            server.close()

    @pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\n", b"\x00\xff\r\n\r\n", b"x" * 100_000])
    def test_nonsense_and_silence_keep_no_one_out(self, server: RunMetrics, sent: bytes) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(20):
                each = stack.enter_context(socket.create_connection(("127.0.0.1", port_of(server)), LIMIT_S))
                with contextlib.suppress(OSError):
                    each.sendall(sent)
            assert ask(port_of(server))[0] == 200
            server.close()

    def test_a_silent_connection_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(publishing._Handler, "timeout", 0.2)
        server = make(metrics_port=0)
        with socket.create_connection(("127.0.0.1", port_of(server)), LIMIT_S) as silent:
            assert silent.recv(1) == b""
        server.close()

    def test_a_port_that_is_taken_after_the_check(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SettingsError, match="cannot be served at"):
            make(metrics_port=taken.getsockname()[1])


def text_of(metrics: RunMetrics) -> str:
    return str(prometheus_client.generate_latest(metrics._registry).decode())


REWARD = "Environment/Cumulative Reward"


class TestMetrics:
    def test_each_behavior_has_its_newest_numbers(self, tmp_path: Path) -> None:
        metrics = make()
        metrics.add_settings("Ball", {"max_steps": 500})
        metrics.write_stats("Ball", {REWARD: StatsSummary([1.0]), "Policy/Entropy": StatsSummary([0.5])}, 100)
        metrics.write_stats("Ball", {REWARD: StatsSummary([2.0])}, 200)
        metrics.write_stats("Ball", {"Evaluation/Cumulative Reward": StatsSummary([9.0])}, 150)
        metrics.write_stats("Wall", {}, 7)
        found = parsed(text_of(metrics))
        ball, wall = {"run": "run", "behavior": "Ball"}, {"run": "run", "behavior": "Wall"}
        assert found["trajtrainer_step"] == [(ball, 200), (wall, 7)]
        assert found["trajtrainer_mean_reward"] == [(ball, 2)]
        assert found["trajtrainer_entropy"] == [(ball, 0.5)]
        assert found["trajtrainer_evaluation_reward"] == [(ball, 9)]
        assert found["trajtrainer_max_steps"] == [(ball, 500)]
        assert {name.removeprefix("trajtrainer_") for name in found} <= HELP.keys()

    def test_a_run_that_was_asked_to_end_is_stopping(self) -> None:
        states = ["running"]
        metrics = make()
        metrics.follow(lambda: states[-1])

        def state() -> str:
            ((labels, _),) = parsed(text_of(metrics))["trajtrainer_run_state"]
            return labels["state"]

        assert state() == "running"
        states.append("stopping")
        assert state() == "stopping"
        states.append("stopped")
        assert state() == "stopped"

    def test_without_a_port_or_a_file_there_is_no_thread(self, tmp_path: Path) -> None:
        before = threading.active_count()
        make().close()
        assert threading.active_count() == before

    def test_only_acting_writes_no_file(self, tmp_path: Path) -> None:
        settings = MonitoringSettings(metrics_file=str(tmp_path / "a.prom"))
        RunMetrics("run", settings, writes=False).close()
        assert list(tmp_path.iterdir()) == []


class TestFile:
    def test_it_has_the_newest_numbers_after_each_summary(self, tmp_path: Path) -> None:
        path = tmp_path / "a.prom"
        metrics = make(metrics_file=str(path))
        assert "trajtrainer_run_state" in parsed(path.read_text())
        for step in range(1, 20):
            metrics.write_stats("Ball \udc80", {REWARD: StatsSummary([1.0])}, step)
            assert only(parsed(path.read_text()), "step") == step
        metrics.follow(lambda: "finished")
        metrics.close()
        ((labels, _),) = parsed(path.read_text())["trajtrainer_run_state"]
        assert labels["state"] == "finished"
        assert [each.name for each in tmp_path.iterdir()] == ["a.prom"]

    def test_readers_of_prom_files_never_see_one_that_is_being_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names: list[list[str]] = []
        replace = os.replace

        def replacing(source: Any, target: Any) -> None:
            names.append([each.name for each in tmp_path.iterdir() if each.suffix == ".prom"])
            replace(source, target)

        monkeypatch.setattr(os, "replace", replacing)
        make(metrics_file=str(tmp_path / "a.prom")).close()
        assert names[0] == []

    def test_a_disk_that_is_full_for_a_while_is_reported_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        write, full = atomic.write_unsynced, [True]

        def writing(path: Path, text: str) -> None:
            if full[0]:
                raise OSError(28, "No space left on device")
            write(path, text)

        monkeypatch.setattr(atomic, "write_unsynced", writing)
        metrics = make(metrics_file=str(tmp_path / "a.prom"))
        for step in range(3):
            metrics.write_stats("Ball", {}, step)
        full[0] = False
        metrics.close()
        assert only(parsed((tmp_path / "a.prom").read_text()), "step") == 2
        assert caplog.text.count("No space left on device. Training continues.") == 1
