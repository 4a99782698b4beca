"""Measures the cost of communication: answering a player with prepared bytes, and stepping it without learning."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent import futures
from functools import partial
from typing import Any

import grpc
import numpy as np

from scripts.benchmarks.report import RUNS, Row, interleaved
from trajtrainer.core.steps import ActionBatch
from trajtrainer.core.version import API_VERSION
from trajtrainer.envs.unity.behaviors import capabilities
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityMessageProto
from trajtrainer.envs.unity_worker import UnityWorker
from trajtrainer.settings.environment import EngineSettings, EnvironmentSettings

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
STEPS, WARM_UP = 1500, 100
SIZES = ((12, 8), (100, 8), (100, 200))


def measure() -> list[Row]:
    rows = []
    for agents, floats in SIZES:
        floor, stepping = interleaved([partial(f, agents, floats) for f in (wire_floor, stepping_only)], RUNS)
        label = f"{agents} agents x {floats} floats"
        rows.append(Row(f"wire floor, {label}", "agent-steps/s", floor))
        rows.append(
            Row(f"stepping without learning, {label}", "agent-steps/s", stepping, 0.85 * float(np.median(floor)))
        )
    return rows


def player_arguments(agents: int, floats: int) -> list[str]:
    return ["--agents", str(agents), "--observation-size", str(floats)]


def no_actions(agents: int) -> ActionBatch:
    zeros = np.zeros((agents, 2), np.float32)
    return ActionBatch(
        zeros, np.zeros((agents, 0), np.int32), zeros, zeros, zeros[:, 0], np.zeros((agents, 0), np.float32), 0
    )


class _CannedServer(grpc.GenericRpcHandler):
    """Answers each message after the handshake with the same bytes, without decoding it."""

    def __init__(self, agents: int) -> None:
        handshake = UnityMessageProto()
        handshake.header.status = 200
        start = handshake.unity_input.rl_initialization_input
        start.communication_version = API_VERSION
        start.capabilities.CopyFrom(capabilities())
        reset = UnityMessageProto()
        reset.header.status = 200
        reset.unity_input.rl_input.command = 1
        actions = no_actions(agents)
        answer = UnityMessageProto()
        answer.header.status = 200
        for _ in range(agents):
            one = answer.unity_input.rl_input.agent_actions["Bench?team=0"].value.add()
            one.continuous_actions.extend(actions.continuous[0].tolist())
            one.vector_actions_deprecated.extend(actions.continuous[0].tolist())
        self._first = [handshake.SerializeToString(), reset.SerializeToString()]
        self._answer = answer.SerializeToString()
        self._quit = b"\x0a\x03\x08\x90\x03"  # status 400
        self.started = self.finished = 0.0
        self._count = 0

    def service(self, _details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._exchange)

    def _exchange(self, _request: bytes, _context: Any) -> bytes:
        self._count += 1
        if self._count <= len(self._first):
            return self._first[self._count - 1]
        if self._count == WARM_UP:
            self.started = time.perf_counter()
        if self._count == WARM_UP + STEPS:
            self.finished = time.perf_counter()
            return self._quit
        return self._answer


def wire_floor(agents: int, floats: int) -> float:
    handler = _CannedServer(agents)
    server = grpc.server(
        futures.ThreadPoolExecutor(1), handlers=(handler,), options=[("grpc.max_receive_message_length", -1)]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    command = [sys.executable, "-m", "trajtrainer.envs.sim", "Bench", "--mlagents-port", str(port)]
    subprocess.run(command + player_arguments(agents, floats), timeout=120, check=True)
    server.stop(0)
    return agents * STEPS / (handler.finished - handler.started)


def stepping_only(agents: int, floats: int) -> float:
    settings = EnvironmentSettings(env_path="sim:Bench", base_port=16000, env_args=player_arguments(agents, floats))
    environment = UnityWorker(settings, EngineSettings(), seed=0)
    try:
        environment.reset({})
        started = 0.0
        for step in range(WARM_UP + STEPS):
            if step == WARM_UP:
                started = time.perf_counter()
            (event,) = environment.wait(60)
            environment.send(0, {name: no_actions(batch.num_decisions) for name, batch in event.steps.items()})
        return agents * STEPS / (time.perf_counter() - started)
    finally:
        environment.close()
