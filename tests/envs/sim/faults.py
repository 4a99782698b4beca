"""Misbehavior on request, for tests of what must cope with it: a hook of the simulations' players.

``fault("crash@3:7")`` gives the arguments of a player that misbehaves: KIND[@STEP][:ARGUMENT]. Steps count the messages
with agents that the player sends, from 1, resets included. Several faults of one player are several hooks.

The player runs this file by itself (see ``trajtrainer.envs.sim.options.hooked``), so it imports nothing of the tests.

| fault | what happens |
| --- | --- |
| ``crash@N:CODE``, ``crash@N:SIGSEGV`` | instead of sending step N the process ends, by exit code (1) or signal |
| ``crash-in-reset@N:CODE`` | the same within reset N (1), counted from 1 |
| ``hang@N`` | instead of sending step N nothing happens; ends with its parent process |
| ``slow-start:SECONDS`` | waits (2) before it connects |
| ``never-connect`` | runs, and never connects; ends with its parent process |
| ``quit@N`` | instead of step N it tells the trainer that the player quits (status 400) |
| ``linger`` | told to end, it stays, even after SIGTERM; ends with its parent process |
| ``wrong-version:VERSION`` | announces this version of the wire (9.0.0) |
| ``rubbish@N`` | bytes that are no message instead of step N; N = 0 for the handshake |
| ``nan-observation@N:RECORD`` | in step N the first number of this record (0) of each behavior is NaN |
| ``infinite-observation@N:RECORD`` | the same with infinity |
| ``nan-reward@N:RECORD``, ``infinite-reward@N:RECORD`` | the same with the record's reward |
| ``duplicate-id@N:RECORD`` | in step N this record (0) of each behavior has the id of the next one, and decides too |
| ``wrong-size@N:RECORD`` | the same record's first vector is one number too short |
"""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from trajtrainer.envs.sim.wire import read_order
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

RUBBISH = b"\xff\xfe this is no message \x00\x07"
WATCH_SECONDS = 0.1
STATUS_QUIT = 400


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
    """One misbehavior: its kind, the step (or reset) at which it happens, and its argument."""

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


def fault(text: str, *, port: int | None = None, once: Path | None = None) -> tuple[str, str, str]:
    """Arguments of a player that misbehaves.

    Args:
        text: the fault.
        port: misbehave only when connected to this port.
        once: a file that is made when the fault happens; where it exists nothing happens, so that a player that is
            started again behaves.
    """
    return "--hook", __file__, json.dumps([text, port, None if once is None else str(once)])


class _Misbehavior:
    """The fault of this process."""

    def __init__(self, port: int, text: str) -> None:
        fault, only_port, once = json.loads(text)
        self.fault = Fault.parse(fault)
        self._parent = os.getppid()  # now: the parent may end upon the line that reports a fault
        self._once = None if once is None else Path(once)
        self._is_off = only_port not in (None, port) or (self._once is not None and self._once.exists())

    def claim(self, kind: str, step: int | None = None) -> bool:
        """Whether the fault is of this kind and happens now."""
        if self._is_off or self.fault.kind != kind or step not in (None, self.fault.step):
            return False
        if self._once is not None:
            try:
                os.close(os.open(self._once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                return False
        logger.warning("fault on request: %s", self.fault)
        return True

    def before_connecting(self) -> None:
        if self.claim("slow-start"):
            time.sleep(float(self.fault.argument))
        if self.claim("never-connect"):
            wait_for_parent_to_end(self._parent)

    def in_reset(self, number: int) -> None:
        if self.claim("crash-in-reset", number):
            crash(self.fault.argument)

    def linger(self) -> None:
        if self.claim("linger"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            wait_for_parent_to_end(self._parent)

    def outgoing(self, step: int, message: bytes, corrupt: Callable[[bytes, str, int], bytes]) -> bytes:
        """What is sent as step ``step``: the message, something worse, or the process ends here."""
        if self.claim("crash", step):
            crash(self.fault.argument)
        if self.claim("hang", step):
            wait_for_parent_to_end(self._parent)
        if self.claim("rubbish", step):
            return RUBBISH
        if self.fault.kind in CORRUPTIONS and self.claim(self.fault.kind, step):
            return corrupt(message, self.fault.kind, int(self.fault.argument))
        return message


Conversation = Generator[bytes, bytes, None]


def converse(conversation: Conversation, port: int, text: str) -> Conversation:
    """The hook of a Unity player."""
    bad = _Misbehavior(port, text)
    bad.before_connecting()
    message = next(conversation)
    if bad.claim("wrong-version"):
        hello = pb.UnityMessageProto.FromString(message)
        hello.unity_output.rl_initialization_output.communication_version = bad.fault.argument
        message = hello.SerializeToString()
    try:
        # The message after the handshake has no agents.
        answer = yield conversation.send((yield bad.outgoing(0, message, _corrupted)))
        resets = 0
        for step in itertools.count(1):
            order = read_order(answer)
            message = conversation.send(answer)
            if order.command == pb.RESET or step == 1:
                resets += 1
                bad.in_reset(resets)
            if bad.claim("quit", step):
                yield pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_QUIT)).SerializeToString()
                return
            answer = yield bad.outgoing(step, message, _corrupted)
    except StopIteration:
        atexit.register(bad.linger)


Answers = Callable[[dict[str, Any]], bytes | None]


def answer_godot(answer: Answers, port: int, text: str) -> Answers:
    """The hook of a Godot game."""
    bad = _Misbehavior(port, text)
    bad.before_connecting()
    atexit.register(bad.linger)
    steps, resets = itertools.count(1), itertools.count(1)

    def misbehave(message: dict[str, Any]) -> bytes | None:
        if message["type"] == "reset":
            bad.in_reset(next(resets))
        content = answer(message)
        if content is None or message["type"] == "call":
            return content
        if message["type"] == "env_info":
            return bad.outgoing(0, content, _corrupted_json)
        step = next(steps)
        if bad.claim("quit", step):
            raise ConnectionAbortedError
        return bad.outgoing(step, content, _corrupted_json)

    return misbehave


def _corrupted_json(message: bytes, kind: str, agent: int) -> bytes:
    parsed = json.loads(message)
    numbers = next(value for value in parsed["obs"][agent].values() if isinstance(value, list))
    value = math.nan if kind.startswith("nan") else math.inf
    if kind.endswith("observation"):
        numbers[0] = value
    elif kind.endswith("reward") and "reward" in parsed:
        parsed["reward"][agent] = value
    elif kind == "wrong-size":
        del numbers[-1]
    return json.dumps(parsed).encode()


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
