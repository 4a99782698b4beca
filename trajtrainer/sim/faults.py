"""Misbehaviour on request, for tests of those who must cope with it: ``--fault KIND[@STEP][:ARGUMENT]``.

Steps count the messages with agents that this process sends, from 1, resets included.

| fault | what happens |
| --- | --- |
| ``crash@N:CODE``, ``crash@N:SIGSEGV`` | instead of sending step N the process ends, by exit code (1) or signal |
| ``crash-in-reset@N:CODE`` | the same within reset N (1), counted from 1 |
| ``hang@N`` | instead of sending step N nothing happens any more; ends with its parent process |
| ``slow-start:SECONDS`` | waits (2) before it connects |
| ``never-connect`` | runs, and never connects; ends with its parent process |
| ``quit@N`` | instead of step N it tells the trainer that the player quits (status 400) |
| ``linger`` | told to end, it goes on, even after SIGTERM; ends with its parent process |
| ``wrong-version:VERSION`` | announces this version of the wire (9.0.0) |
| ``rubbish@N`` | bytes that are no message instead of step N; N = 0 for the handshake |
| ``nan-observation@N:RECORD`` | in step N the first number of this record (0) of each behaviour is NaN |
| ``infinite-observation@N:RECORD`` | the same with infinity |
| ``nan-reward@N:RECORD``, ``infinite-reward@N:RECORD`` | the same with the record's reward |
| ``duplicate-id@N:RECORD`` | in step N this record (0) of each behaviour has the id of the next one, and decides too |
| ``wrong-size@N:RECORD`` | the same record's first vector is one number too short |
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trajtrainer.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

RUBBISH = b"\xff\xfe this is no message \x00\x07"
WATCH_SECONDS = 0.1


def _observation(value: float) -> Callable[[pb.AgentInfoProto], None]:
    def corrupt(info: pb.AgentInfoProto) -> None:
        _first_floats(info).data[0] = value

    return corrupt


def _reward(value: float) -> Callable[[pb.AgentInfoProto], None]:
    def corrupt(info: pb.AgentInfoProto) -> None:
        info.reward = value

    return corrupt


def _take_next_id(info: pb.AgentInfoProto) -> None:
    info.id += 1
    info.done = False


def _shorten(info: pb.AgentInfoProto) -> None:
    del _first_floats(info).data[-1]


def _first_floats(info: pb.AgentInfoProto) -> pb.ObservationProto.FloatData:
    return next(o.float_data for o in info.observations if o.HasField("float_data"))


CORRUPTIONS: dict[str, Callable[[pb.AgentInfoProto], None]] = {
    "nan-observation": _observation(math.nan),
    "infinite-observation": _observation(math.inf),
    "nan-reward": _reward(math.nan),
    "infinite-reward": _reward(-math.inf),
    "wrong-size": _shorten,
    "duplicate-id": _take_next_id,
}
# kind -> whether it takes a step, and the argument used when none is given (None: takes no argument)
KINDS: dict[str, tuple[bool, str | None]] = {
    "crash": (True, "1"),
    "crash-in-reset": (True, "1"),
    "hang": (True, None),
    "slow-start": (False, "2"),
    "never-connect": (False, None),
    "quit": (True, None),
    "linger": (False, None),
    "wrong-version": (False, "9.0.0"),
    "rubbish": (True, None),
    **dict.fromkeys(CORRUPTIONS, (True, "0")),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One misbehaviour: its kind, the step (or reset) at which it happens, and its argument."""

    kind: str
    step: int
    argument: str

    @classmethod
    def parse(cls, text: str) -> Fault:
        """Read ``KIND[@STEP][:ARGUMENT]``.

        Raises:
            ValueError: there is no such fault, or its step or argument does not fit.
        """
        head, _, argument = text.partition(":")
        kind, at, step = head.partition("@")
        if kind not in KINDS:
            raise ValueError(f"there is no fault {kind!r}; known are {', '.join(KINDS)}")
        takes_step, default = KINDS[kind]
        if takes_step and kind != "crash-in-reset" and not at:
            raise ValueError(f"fault {kind!r} needs a step: {kind}@STEP")
        if (at and not (takes_step and step.isdigit())) or (argument and default is None):
            raise ValueError(
                f"fault {text!r} is not of the form {kind}{'@STEP' * takes_step}{':ARGUMENT' * bool(default)}"
            )
        fault = cls(kind, int(step or 1), argument or default or "")
        fault._check_argument()
        return fault

    def _check_argument(self) -> None:
        if self.kind in ("crash", "crash-in-reset") and self.argument.startswith("SIG"):
            valid = self.argument in signal.Signals.__members__
        elif self.kind in ("crash", "crash-in-reset") or self.kind in CORRUPTIONS:
            valid = self.argument.isdigit()
        else:
            valid = self.kind != "slow-start" or self.argument.replace(".", "", 1).isdigit()
        if not valid:
            raise ValueError(f"fault {self.kind!r} does not take the argument {self.argument!r}")


class Faults:
    """The misbehaviours of one player.

    Args:
        faults: what shall happen.
        once: a file that is made when something happens; where it exists nothing does, so that a player that is started
            again behaves.
        corrupt: spoils the record of a message; the kind is one of ``CORRUPTIONS``.
    """

    def __init__(
        self, faults: list[Fault], once: Path | None = None, corrupt: Callable[[bytes, str, int], bytes] | None = None
    ) -> None:
        self._corrupt = corrupt or _corrupted
        self._parent = os.getppid()  # now: the parent may end upon the line that tells of a fault
        self._once = once
        self._faults = [] if once is not None and once.exists() else faults

    def _take(self, kind: str, step: int | None = None) -> Fault | None:
        for fault in self._faults:
            if fault.kind == kind and step in (None, fault.step) and self._claim():
                logger.warning("fault on request: %s", fault)
                return fault
        return None

    def _claim(self) -> bool:
        """Return True for the first process that wants to misbehave, where only one may."""
        if self._once is None:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def api_version(self, actual: str) -> str:
        """Return the version of the wire to announce."""
        fault = self._take("wrong-version")
        return fault.argument if fault else actual

    def before_connecting(self) -> None:
        """Start slowly, or never connect."""
        fault = self._take("slow-start")
        if fault:
            time.sleep(float(fault.argument))
        if self._take("never-connect"):
            wait_for_parent_to_end(self._parent)

    def before_reset(self, number: int) -> None:
        """Crash in a reset."""
        fault = self._take("crash-in-reset", number)
        if fault:
            crash(fault.argument)

    def quits(self, step: int) -> bool:
        """Return whether the player shall quit instead of sending step ``step``."""
        return self._take("quit", step) is not None

    def when_told_to_end(self) -> None:
        """Linger."""
        if self._take("linger"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            wait_for_parent_to_end(self._parent)

    def outgoing(self, step: int, message: bytes) -> bytes:
        """Return what is sent as step ``step``: the message, something worse, or the process ends here."""
        if not self._faults:
            return message
        fault = self._take("crash", step)
        if fault:
            crash(fault.argument)
        if self._take("hang", step):
            wait_for_parent_to_end(self._parent)
        if self._take("rubbish", step):
            return RUBBISH
        for kind in CORRUPTIONS:
            fault = self._take(kind, step)
            if fault:
                message = self._corrupt(message, kind, int(fault.argument))
        return message


def _corrupted(message: bytes, kind: str, record: int) -> bytes:
    corrupt = CORRUPTIONS[kind]
    parsed = pb.UnityMessageProto.FromString(message)
    for infos in parsed.unity_output.rl_output.agentInfos.values():
        if record < len(infos.value):
            corrupt(infos.value[record])
    return parsed.SerializeToString()


def crash(how: str) -> NoReturn:
    """End this process at once, by the signal ``how`` (SIGSEGV) or with the exit code ``how``."""
    logging.shutdown()
    sys.stdout.flush()
    if how.startswith("SIG"):
        _write_no_core()
        os.kill(os.getpid(), signal.Signals[how])
        time.sleep(10.0)  # the signal arrives before this is over
    os._exit(int(how) if how.isdigit() else 1)


def _write_no_core() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def wait_for_parent_to_end(parent: int) -> NoReturn:
    """Do nothing until the parent process is gone, and end then: a test that dies leaves nothing behind."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)
