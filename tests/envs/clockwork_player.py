"""A player of the clockwork (see ``clockwork``) as a build: a program of its own that speaks over the wire.

``write_build`` makes it. Each start claims an incarnation, misbehaves as a seed decides, and notes what it has sent.
"""

from __future__ import annotations

import itertools
import json
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np

from tests.envs import clockwork
from tests.envs.clockwork import NUM_AGENTS, SPEC, SentLog, claim_incarnation
from tests.envs.sim import faults
from trajtrainer.core.steps import LongArray
from trajtrainer.envs.sim import registry
from trajtrainer.envs.sim.__main__ import main
from trajtrainer.envs.sim.conversation import Conversation
from trajtrainer.envs.sim.registry import SimulationKind
from trajtrainer.envs.sim.simulation import EnvironmentParameters, SimulatedActions, SimulationOptions, SimulationStep

NAME = "Clockwork"
AT_START = "exit-at-start"
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Plan:
    """How players misbehave.

    Attributes:
        base_port: of worker 0.
        faults: of ``tests.envs.sim.faults``, with ``{at}`` for the message, or ``AT_START``; each comes once, in this
            order, the lives of the first worker first, and then they are drawn evenly.
        lives: how many incarnations of each worker do.
        longest: life of an incarnation in messages.
        only_port: the port of the only player that misbehaves; None for all.
    """

    base_port: int
    faults: list[str]
    lives: int
    longest: int
    only_port: int | None = None


def write_build(folder: Path, plan: Plan) -> Path:
    """The program's file."""
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    build = folder / "clockwork.x86_64"
    build.write_text(
        f"#!{sys.executable}\n"
        f"import sys\nsys.path.insert(0, {str(_ROOT)!r})\n"
        f"from tests.envs.clockwork_player import play\nsys.exit(play({str(folder)!r}, sys.argv[1:]))\n"
    )
    build.chmod(build.stat().st_mode | stat.S_IXUSR)
    return build


def play(folder: str, arguments: list[str]) -> int:
    """The program."""
    plan = Plan(**json.loads((Path(folder) / "plan.json").read_text()))
    port = int(arguments[arguments.index("--mlagents-port") + 1])
    incarnation = claim_incarnation(Path(folder), port - plan.base_port)
    draw = Random(incarnation)
    hook = None
    worker, life = divmod(incarnation, 1000)
    if life < plan.lives:
        number = worker * plan.lives + life
        kind = plan.faults[number] if number < len(plan.faults) else draw.choice(plan.faults)
        kind = kind.format(at=draw.randrange(1, plan.longest))
        if kind == AT_START and plan.only_port in (None, port):
            return 9
        if kind != AT_START:
            hook = faults.fault(kind, port=plan.only_port)[-1]
    registry.SIMULATIONS[NAME] = SimulationKind(
        lambda options, random, parameters: Clockwork(incarnation, parameters), SimulationOptions, "a clockwork"
    )
    return main([NAME, *arguments, "--hook", __file__, json.dumps([folder, incarnation, hook])])


class Clockwork:
    """A Simulation."""

    spec = SPEC
    num_agents = NUM_AGENTS
    masked = False
    groups: LongArray | None = None

    def __init__(self, incarnation: int, parameters: EnvironmentParameters) -> None:
        self._incarnation = incarnation
        self._time = -1

    def reset(self) -> SimulationStep:
        assert self._time == -1, "it is reset once"
        return self._next()

    def step(self, actions: SimulatedActions) -> SimulationStep:
        expected = clockwork.actions_for(clockwork.decisions(self._incarnation, self._time)).env_continuous
        assert np.array_equal(actions.continuous, expected)
        return self._next()

    def _next(self) -> SimulationStep:
        self._time += 1
        batch = clockwork.batch(0, 0, self._time)
        return SimulationStep(
            observations=(clockwork.decisions(self._incarnation, self._time),),
            reward=batch.reward[batch.num_terminal :],
            mask=None,
            ended=np.array(clockwork.ended(self._time), np.int64),
            ended_observations=(clockwork.last_observations(self._incarnation, self._time),),
            ended_reward=batch.reward[: batch.num_terminal],
            interrupted=batch.interrupted,
        )


def converse(conversation: Conversation, port: int, text: str) -> Conversation:
    """The hook: misbehaves as ``tests.envs.sim.faults`` does, and notes what is sent with agents as it was."""
    folder, incarnation, hook = json.loads(text)
    log = SentLog(Path(folder), incarnation)
    made = b""

    def tapped() -> Conversation:
        nonlocal made
        made = next(conversation)
        while True:
            answer = yield made
            try:
                made = conversation.send(answer)
            except StopIteration:
                return

    sending = tapped() if hook is None else faults.converse(tapped(), port, hook)
    message = next(sending)
    for number in itertools.count():
        if number > 1 and message is made:  # after the handshake and the message without agents
            log.note()
        answer = yield message
        try:
            message = sending.send(answer)
        except StopIteration:
            return
