"""docs/operate/monitoring.md is true: its table of metrics, its examples, and the names that they use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from trajtrainer.core.metrics import HELP, MAX_STEPS, OF_STATISTICS, PREFIX, STD_REWARD
from trajtrainer.settings.yaml.convert import load

TEXT = (Path(__file__).resolve().parents[1] / "docs" / "operate" / "monitoring.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def table() -> dict[str, dict[str, str]]:
    """Name of a metric -> its row."""
    lines = TEXT.partition("| metric |")[2].splitlines()
    heads = ["labels", "tag", "in", "meaning"]
    rows = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[name.strip("`")] = dict(zip(heads, cells, strict=True))
    return rows


def test_the_table_has_every_metric_as_it_is() -> None:
    rows = table()
    assert rows.keys() == HELP.keys()
    assert {name: row["meaning"] for name, row in rows.items()} == HELP
    for metric in OF_STATISTICS:
        row = rows[metric.name]
        assert row["tag"] == f"`{metric.tag}`" + (" (here GiB)" if metric.scale != 1 else "")
        assert (row["labels"], row["in"]) == ("run, behavior", "run, page, JSON")
    places = {name: row["in"] for name, row in rows.items()}
    assert (places[MAX_STEPS], places[STD_REWARD], places["runs"]) == ("run, page", "run, JSON", "page")


def test_all_names_in_examples_and_queries_are_metrics() -> None:
    names = re.findall(rf"\b{PREFIX}(\w+)", TEXT)
    assert len(set(names)) > 6
    assert set(names) <= HELP.keys()


def test_the_configurations_can_be_read() -> None:
    settings, prometheus, alerts = map(yaml.safe_load, blocks("yaml"))
    read = load(json.dumps({"behaviors": {"A": {}}, **settings}), "a.yaml").monitoring
    assert read is not None
    assert read.metrics_port == 9464

    jobs: list[dict[str, Any]] = prometheus["scrape_configs"]
    assert all(job.keys() <= {"job_name", "scrape_interval", "authorization", "static_configs"} for job in jobs)
    targets = [target for job in jobs for each in job["static_configs"] for target in each["targets"]]
    assert all(re.fullmatch(r"[\w-]+:\d+", target) for target in targets)
    assert prometheus["rule_files"] == ["trajtrainer-alerts.yml"]
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    assert all(rule.keys() == {"alert", "expr", "annotations"} for rule in rules)
    assert all(rule["expr"].count("(") == rule["expr"].count(")") for rule in rules)


def test_the_log_line_has_the_keys_of_the_table() -> None:
    (line,) = blocks("json")
    keys = json.loads(line).keys()
    assert keys - HELP.keys() == {"time", "level", "message", "event", "behavior", "elapsed_seconds", "logger"}
    documented = TEXT.partition("| key |")[2].partition("## Metrics")[0]
    assert all(f"`{key}`" in documented for key in keys - HELP.keys())
