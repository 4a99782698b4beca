"""Sockets that servers listen at."""

from __future__ import annotations

import errno
import socket

import pytest

from trajtrainer.core.listening import is_loopback, listen


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.168.0.7", False),
        ("localhost.example.org", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize("host", ["a..b", ".", "x" * 64, "a\ud83d", "a\0b"])
def test_a_name_that_no_host_can_have_is_an_unknown_address(host: str) -> None:
    with pytest.raises(socket.gaierror):
        listen(host, 0)


def test_port_0_is_any_free_port_and_a_client_connects() -> None:
    with listen("127.0.0.1", 0) as listener:
        address = listener.getsockname()
        with socket.create_connection(address, timeout=10) as client:
            server, peer = listener.accept()
            server.close()
            assert peer == client.getsockname()


def test_a_port_in_use_is_an_error_and_leaves_no_socket() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(OSError, match="in use") as caught:
        listen("127.0.0.1", listener.getsockname()[1])
    assert caught.value.errno == errno.EADDRINUSE
