"""A Windows job object: its processes are killed when this process ends, no matter how."""

from __future__ import annotations

import ctypes
import sys
from ctypes import wintypes

assert sys.platform == "win32"

_EXTENDED_LIMITS = 9  # JobObjectExtendedLimitInformation
_KILL_ON_CLOSE = 0x2000  # JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
_SET_QUOTA_AND_TERMINATE = 0x0101  # PROCESS_SET_QUOTA | PROCESS_TERMINATE
_EXIT_CODE = 1

_KERNEL = ctypes.WinDLL("kernel32", use_last_error=True)

_KERNEL.CreateJobObjectW.argtypes = (wintypes.LPVOID, wintypes.LPCWSTR)
_KERNEL.CreateJobObjectW.restype = wintypes.HANDLE
_KERNEL.SetInformationJobObject.argtypes = (wintypes.HANDLE, ctypes.c_int, wintypes.LPVOID, wintypes.DWORD)
_KERNEL.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
_KERNEL.OpenProcess.restype = wintypes.HANDLE
_KERNEL.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
_KERNEL.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
_KERNEL.CloseHandle.argtypes = (wintypes.HANDLE,)


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION, of which only the flags are used."""

    _fields_ = (
        ("times", ctypes.c_int64 * 2),
        ("flags", wintypes.DWORD),
        ("working_set", ctypes.c_size_t * 2),
        ("processes", wintypes.DWORD),
        ("affinity", ctypes.c_size_t),
        ("classes", wintypes.DWORD * 2),
        ("io_counters", ctypes.c_uint64 * 6),
        ("memory", ctypes.c_size_t * 4),
    )


class Job:
    """A process and everything it starts from now on, all of which Windows kills when this process ends.

    Args:
        pid: id of the process; keep a reference to its ``Popen``, so that the id is not reused.

    Raises:
        OSError: Windows cannot create the job or add the process to it.
    """

    def __init__(self, pid: int) -> None:
        self._job: int | None = _checked(_KERNEL.CreateJobObjectW(None, None))
        try:
            self._set_flags(_KILL_ON_CLOSE)
            process = _checked(_KERNEL.OpenProcess(_SET_QUOTA_AND_TERMINATE, False, pid))
            try:
                _checked(_KERNEL.AssignProcessToJobObject(self._job, process))
            finally:
                _KERNEL.CloseHandle(process)
        except BaseException:
            _KERNEL.CloseHandle(self._job)
            raise

    def kill(self) -> None:
        """Kill all processes of the job without waiting for them to end."""
        if self._job is not None:
            _KERNEL.TerminateJobObject(self._job, _EXIT_CODE)

    def release(self) -> None:
        """Let the remaining processes continue: Unity's crash handler writes its report after the player has ended."""
        if self._job is not None:
            self._set_flags(0)
            job, self._job = self._job, None
            _KERNEL.CloseHandle(job)

    def _set_flags(self, flags: int) -> None:
        limits = _Limits(flags=flags)
        _checked(
            _KERNEL.SetInformationJobObject(self._job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits))
        )


def _checked(result: int | None) -> int:
    if not result:
        raise ctypes.WinError(ctypes.get_last_error())
    return result
