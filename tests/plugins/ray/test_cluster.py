"""Addresses of clusters that are none, and Ray that is not there."""

from __future__ import annotations

import socket
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from trajtrainer.core.errors import SettingsError
from trajtrainer.plugins.ray import cluster
from trajtrainer.plugins.ray.cluster import Cluster, connect


def test_what_needs_ray_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that what is set is put back
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"^actors\.backend ray needs .* pip install 'trajtrainer\[ray\]'\.$"):
        connect(None, 1, "actors.backend ray")


@pytest.mark.parametrize("address", ["here", "10.0.0.5", ":6379", "10.0.0.5:port", "http://10.0.0.5/"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(SettingsError, match="expected 'auto' or HOST:PORT such as"):
        connect(address, 1, "a test")


def test_an_address_where_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SettingsError, match=rf"No Ray cluster answers at 127\.0\.0\.1:{port}: .*refused"):
        connect(f"127.0.0.1:{port}", 1, "a test")


def test_a_name_that_no_host_can_have() -> None:
    with pytest.raises(SettingsError, match=r"No Ray cluster answers at a\.\.b:6379"):
        connect("a..b:6379", 1, "a test")


def test_ports_that_there_cannot_be() -> None:
    with pytest.raises(SettingsError, match="No Ray cluster answers at 127"):
        connect("127.0.0.1:70000", 1, "a test")


def test_ray_client_is_refused() -> None:
    with pytest.raises(SettingsError, match="is for Ray Client"):
        connect("ray://127.0.0.1:10001", 1, "a test")


@pytest.mark.parametrize(
    ("addresses", "mode", "expected"),
    [
        (["127.0.0.1", "127.0.0.2"], "", []),
        (["127.0.0.1", "10.0.0.5"], "token", ["INFO"]),
        (["127.0.0.1", "10.0.0.5"], "disabled", ["WARNING"]),
    ],
)
def test_what_others_can_reach_is_told(
    addresses: list[str],
    mode: str,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    nodes = [{"NodeManagerAddress": each, "Alive": True} for each in addresses]
    ray: Any = SimpleNamespace(nodes=lambda: nodes)
    cluster._log_exposure(Cluster(ray, "10.0.0.5:6379"))
    assert [record.levelname for record in caplog.records] == expected
    assert all("10.0.0.5" in record.message for record in caplog.records)
