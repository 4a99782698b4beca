"""What follows a run: the rows that its settings ask for, and what happens if one of them is missing or fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packages import Install
from tests.ports import free_ports
from tests.run import prefork
from tests.run.runs import behaviors_settings, ppo
from trajtrainer.cli.main import main
from trajtrainer.core.errors import PluginError
from trajtrainer.core.plugins import Registry, resolve
from trajtrainer.core.stats import STATS_WRITERS, StatsReporter, StatsSummary, StatsWriter, StatsWriterRow
from trajtrainer.run import followers
from trajtrainer.run.followers import GuardedWriter
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.run.writers import GaugeWriter
from trajtrainer.settings.run import RunSettings


class Broken(StatsWriter):
    def __init__(self) -> None:
        self.calls = 0

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.calls += 1
        raise ZeroDivisionError("a plugin's mistake")


class Observer(StatsWriter):
    """Notes the run's state with each summary and at the end, when it may lack something."""

    def __init__(self, lacks: str | None = None) -> None:
        self.states: list[str] = []
        self._lacks = lacks

    def follow(self, state: Callable[[], str]) -> None:
        self._state = state

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.states.append(self._state())

    def close(self) -> None:
        self.states.append(self._state())
        self.missing = self._lacks


def only(monkeypatch: pytest.MonkeyPatch, **rows: StatsWriterRow) -> None:
    """Let runs have these rows alone."""
    registry = Registry("statistics writer", "nobody's", StatsWriterRow, rows)
    monkeypatch.setattr(followers, "STATS_WRITERS", registry)


def test_a_broken_writer_is_logged_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    broken, gauges = Broken(), GaugeWriter()
    reporter = StatsReporter("Ball", [GuardedWriter("theirs", broken), gauges])
    for _ in range(3):
        reporter.add("a", 1.0)
        reporter.write(1)
    assert broken.calls == 1
    assert gauges.gauges["Ball.a.mean"].count == 3
    assert caplog.text.count("'theirs' failed and is no longer used") == 1
    assert "a plugin's mistake" in caplog.text


def test_plugins_are_made_with_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def several(settings: RunSettings) -> list[StatsWriter]:
        seen.append(settings)
        return [GaugeWriter(), GaugeWriter()]

    only(monkeypatch, several=StatsWriterRow(several), single=StatsWriterRow(lambda _: Broken()))
    settings = RunSettings()
    made = followers.followers(settings, UserCalls())
    assert seen == [settings]
    assert len(made) == 3
    assert all(isinstance(writer, GuardedWriter) for writer in made)
    for writer in made:
        writer.add_hyperparameters("Ball", "text")
        writer.close()


def arguments(folder: Path, **sections: Any) -> list[str]:
    """The command line of a short run with these sections in its configuration."""
    (folder / "a.yaml").write_text(yaml.safe_dump({**behaviors_settings(Basic=ppo(200, summary_freq=100)), **sections}))
    where = [f"--results-dir={folder}", f"--base-port={free_ports(1)}", "--run-id=run"]
    return ["learn", str(folder / "a.yaml"), "--env=sim:Basic", *where]


@pytest.mark.parametrize(("lacks", "code"), [(None, 0), ("its connection broke", 1)])
@pytest.mark.parametrize("guarded", [False, True])
def test_a_writer_knows_the_state_and_decides_about_the_exit_code(
    guarded: bool, lacks: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = Observer(lacks)
    only(monkeypatch, observer=StatsWriterRow(lambda _: observer, guarded=guarded))
    assert main(arguments(tmp_path)) == code
    assert observer.states == ["running", "running", "finished"]


def test_a_row_is_used_if_its_section_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, theirs=StatsWriterRow(lambda _: GaugeWriter(), section="tracking"))
    assert followers.followers(RunSettings(), UserCalls()) == []


def test_a_check_that_fails_is_blamed_on_its_package(install: Install) -> None:
    source = "from trajtrainer import StatsWriterRow as Row\nROW = Row(lambda s: [], check=lambda settings: 1 / 0)"
    install("odd-package", {STATS_WRITERS.group: {"odd": "odd_writers:ROW"}}, odd_writers=source)
    _, check = followers.checks(RunSettings())
    with pytest.raises(PluginError, match=r"The statistics writer 'odd' of package odd-package .* ZeroDivisionError"):
        check(RunSettings())


@pytest.mark.parametrize("command", ["learn", "config"])
def test_a_run_does_not_miss_what_it_does_not_use_and_says_what_it_misses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """As if all rows with a section were gone."""
    for name, row in list(STATS_WRITERS.builtin.items()):
        if row.section is not None:
            monkeypatch.delitem(STATS_WRITERS.builtin, name)

    def outcome(**sections: Any) -> tuple[int, str]:
        _, *rest = arguments(tmp_path, **sections)
        return main([command, *rest]), capsys.readouterr().err

    told = outcome(tracking={"trackio": {}}, monitoring={"metrics_file": str(tmp_path / "a.prom")})
    assert told[0] == 1
    for section in ("tracking", "monitoring"):
        assert f"{section}: this installation of trajtrainer lacks the part that reads this section." in told[1]
    assert "Traceback" not in told[1]
    assert not (tmp_path / "run").exists()
    assert outcome() == (0, "")


def test_what_a_run_does_not_use_is_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys; from trajtrainer.cli.main import main; code = main(sys.argv[1:])\n"
        "print(code, [name for name in sys.modules if name.startswith('trajtrainer.plugins.')])"
    )
    code, output = prefork.run(program, *arguments(tmp_path), log=tmp_path / "log")
    assert code == 0, output
    assert output.splitlines()[-1] == "0 []"


def test_built_in_rows_point_to_what_exists() -> None:
    for name, row in STATS_WRITERS.builtin.items():
        for reference in (row.create, row.check):
            assert reference is None or callable(resolve(reference)), name
