"""The process that listens on a port of Windows, by its table of sockets (iphlpapi)."""

from __future__ import annotations

import ctypes
import socket
import sys
from collections.abc import Iterator
from ctypes import wintypes

assert sys.platform == "win32"

_LISTENERS_WITH_PROCESSES = 3  # TCP_TABLE_OWNER_PID_LISTENER
_INSUFFICIENT_BUFFER = 122
_QUERY_LIMITED = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
_LONGEST_PATH = 32768


class _Row4(ctypes.Structure):
    """MIB_TCPROW_OWNER_PID."""

    _fields_ = tuple(
        (name, wintypes.DWORD)
        for name in ("state", "local_address", "port", "remote_address", "remote_port", "process")
    )


class _Row6(ctypes.Structure):
    """MIB_TCP6ROW_OWNER_PID."""

    _fields_ = (
        ("local_address", ctypes.c_ubyte * 16),
        ("local_scope", wintypes.DWORD),
        ("port", wintypes.DWORD),
        ("remote_address", ctypes.c_ubyte * 16),
        ("remote_scope", wintypes.DWORD),
        ("remote_port", wintypes.DWORD),
        ("state", wintypes.DWORD),
        ("process", wintypes.DWORD),
    )


_TABLES = ((socket.AF_INET, _Row4), (socket.AF_INET6, _Row6))
_NETWORK = ctypes.WinDLL("iphlpapi")
_KERNEL = ctypes.WinDLL("kernel32")
_KERNEL.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
_KERNEL.OpenProcess.restype = wintypes.HANDLE
_KERNEL.QueryFullProcessImageNameW.argtypes = (
    wintypes.HANDLE,
    wintypes.DWORD,
    wintypes.LPWSTR,
    ctypes.POINTER(wintypes.DWORD),
)
_KERNEL.CloseHandle.argtypes = (wintypes.HANDLE,)


def listener_of_windows(port: int) -> tuple[int, str] | None:
    """Return number and program of the process that listens on a port; the program is empty where it is hidden."""
    for family, row in _TABLES:
        for entry in _listeners(family, row):
            if entry.process and socket.ntohs(entry.port & 0xFFFF) == port:
                return entry.process, _program(entry.process)
    return None


def _listeners(family: int, row: type[ctypes.Structure]) -> Iterator[ctypes.Structure]:
    size = wintypes.DWORD(0)
    table = ctypes.create_string_buffer(1)
    while True:  # it may grow in between
        found = _NETWORK.GetExtendedTcpTable(table, ctypes.byref(size), False, family, _LISTENERS_WITH_PROCESSES, 0)
        if found != _INSUFFICIENT_BUFFER:
            break
        table = ctypes.create_string_buffer(size.value)
    if found == 0:
        count = wintypes.DWORD.from_buffer(table).value
        yield from (row * count).from_buffer(table, ctypes.sizeof(wintypes.DWORD))


def _program(process: int) -> str:
    handle = _KERNEL.OpenProcess(_QUERY_LIMITED, False, process)
    if not handle:
        return ""
    try:
        size = wintypes.DWORD(_LONGEST_PATH)
        path = ctypes.create_unicode_buffer(_LONGEST_PATH)
        found = _KERNEL.QueryFullProcessImageNameW(handle, 0, path, ctypes.byref(size))
        return path.value if found else ""
    finally:
        _KERNEL.CloseHandle(handle)
