"""Compares the time of a decision in exported source code and in onnxruntime, for a 2 x 128 MLP with 8 inputs.

Measures CPU time of the deciding process, which other processes affect less than wall time.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime

from scripts.benchmarks.report import Row, interleaved
from trajtrainer.core.spec import USUAL_PROPERTIES, ActionSpec, BehaviorSpec, ObservationSpec, ObservationType
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.policies.onnx.export import export_policy
from trajtrainer.settings.network import NetworkSettings
from trajtrainer.tools.source.write import LANGUAGES, export_source

SPEC = BehaviorSpec([ObservationSpec((8,), USUAL_PROPERTIES[1], ObservationType.DEFAULT, "vector")], ActionSpec(2, ()))
DECISIONS = 20_000  # number of agents' decisions per measurement
# Compiler options -> target in microseconds per call.
C_BARS = {"-O2": 10.0, "-O3 -march=native": 5.0}
CSHARP_100_BAR, NODE_BAR = 4000.0, 25.0

C = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "Ball.h"
int main(int count, char **arguments) {
  static policy_ball_workspace workspace;
  static float seen[800], random[200], continuous[200];
  const float *const observations[] = {seen};
  int discrete[1], agents = atoi(arguments[count - 2]), calls = atoi(arguments[count - 1]);
  float total = 0.0f;
  for (int i = 0; i < 800; i++) seen[i] = 0.001f * (float)i;
  clock_t start = 0;
  for (int i = 0; i < 2 * calls; i++) {
    if (i == calls) start = clock();
    seen[0] = 0.0001f * (float)i;
    policy_ball_decide(&workspace, agents, observations, NULL, NULL, random, 0, continuous, discrete);
    total += continuous[0];
  }
  printf("%g %g\\n", 1e6 * (double)(clock() - start) / CLOCKS_PER_SEC / calls, (double)total);
  return 0;
}
"""
CSHARP = """using System; using System.Diagnostics;
static class Program {
  static void Main(string[] arguments) {
    int agents = int.Parse(arguments[0]), calls = int.Parse(arguments[1]);
    var policy = new PolicyBall(agents);
    var observations = new[] { new float[8 * agents] };
    var random = new float[2 * agents];
    var process = Process.GetCurrentProcess();
    var start = TimeSpan.Zero;
    for (int i = 0; i < 2 * calls; i++) {
      if (i == calls) { process.Refresh(); start = process.TotalProcessorTime; }
      observations[0][0] = 0.0001f * i;
      policy.Decide(agents, observations, null, null, random, false);
    }
    process.Refresh();
    Console.WriteLine(1e3 * (process.TotalProcessorTime - start).TotalMilliseconds / calls + " 0");
  }
}
"""
NODE = """import { Policy } from "./Ball.mjs";
const [agents, calls] = process.argv.slice(2).map(Number);
const policy = new Policy(agents), seen = [new Float32Array(8 * agents)], random = new Float32Array(2 * agents);
let start;
for (let i = 0; i < 2 * calls; i++) {
  if (i === calls) start = process.cpuUsage();
  seen[0][0] = 0.0001 * i;
  policy.decide(seen, null, null, random, false);
}
const { user, system } = process.cpuUsage(start);
console.log((user + system) / calls, 0);
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        actor = Actor(SPEC, NetworkSettings(normalize=True, hidden_units=128, num_layers=2))
        export_policy(actor, SPEC, folder / "Ball.onnx")
        for language in LANGUAGES.values():
            export_source(actor, SPEC, folder / f"Ball{language.suffix}", language, Origin("Ball", None, 0))
        rows = []
        for agents in (1, 100):
            plans: dict[str, tuple[Callable[[], float], float | None]] = {
                "onnxruntime": (partial(_onnxruntime, folder, agents), None)
            }
            for label, (command, bar) in _commands(folder, agents).items():
                plans[label] = (partial(_run, folder, command, agents), bar)
            figures = interleaved([plan for plan, _ in plans.values()])
            rows += [
                Row(f"{label}, {agents} agent{'s' * (agents > 1)}", "us of CPU per call", found, bar)
                for (label, (_, bar)), found in zip(plans.items(), figures, strict=True)
            ]
    return rows


def _commands(folder: Path, agents: int) -> dict[str, tuple[list[str], float | None]]:
    """Compile the programs, and return label -> command and target. Print which tools are missing."""
    found: dict[str, tuple[list[str], float | None]] = {}
    missing = [tool for tool in ("gcc", "mcs", "mono", "node") if shutil.which(tool) is None]
    if missing:
        print(f"Not installed, so not measured: {', '.join(missing)}.", file=sys.stderr)
    if "gcc" not in missing:
        (folder / "main.c").write_text(C)
        for options, bar in C_BARS.items():
            program = str(folder / f"main{options.replace(' ', '')}")
            command = ["gcc", "-std=c99", *options.split(), "main.c", "-o", program, "-lm"]
            subprocess.run(command, cwd=folder, check=True)
            found[f"C {options}"] = ([program], bar if agents == 1 else None)
    if not {"mcs", "mono"}.intersection(missing):
        (folder / "Main.cs").write_text(CSHARP)
        subprocess.run(["mcs", "-optimize+", "Main.cs", "Ball.cs", "-out:main.exe"], cwd=folder, check=True)
        found["C# (mono)"] = (["mono", "main.exe"], CSHARP_100_BAR if agents > 1 else None)
    if "node" not in missing:
        (folder / "main.mjs").write_text(NODE)
        found["JavaScript (node)"] = (["node", "main.mjs"], NODE_BAR if agents == 1 else None)
    return found


def _run(folder: Path, command: list[str], agents: int) -> float:
    done = subprocess.run(
        [*command, str(agents), str(DECISIONS // agents)], cwd=folder, check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[0])


def _onnxruntime(folder: Path, agents: int) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "Ball.onnx", options, providers=["CPUExecutionProvider"])
    seen, calls, start_s = np.zeros((agents, 8), np.float32), DECISIONS // agents, 0.0
    for i in range(2 * calls):
        if i == calls:
            start_s = time.process_time()
        seen[0, 0] = 0.0001 * i
        session.run(["continuous_actions"], {"obs_0": seen})
    return 1e6 * (time.process_time() - start_s) / calls
