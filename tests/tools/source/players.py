"""Programs that decide with exported policies: one for each language, of all policies that are asked at a time."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tests.tools.source.reference import Decisions, Question
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.tools.source.printing import identifier
from trajtrainer.tools.source.program import Program
from trajtrainer.tools.source.write import LANGUAGES, build_program

RUN_GODOT = Path(__file__).resolve().parents[4] / "shared" / "tools" / "godot" / "run.py"
GODOT = Path(os.environ.get("GODOT_WEB", Path(__file__).resolve().parents[3] / "build" / "godot"))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")


class Asked(NamedTuple):
    """A policy as source code, in a file of a folder, with the question to it."""

    name: str
    file: Path
    program: Program
    question: Question

    @property
    def rows(self) -> int:
        return len(self.question.random)


def prepare(folder: Path, language: str, name: str, actor: Actor, question: Question) -> Asked:
    """Writes the source code and, beside it, the numbers of the question."""
    form = LANGUAGES[language]
    program = build_program(actor, actor.spec, columns=form.columns)
    file = folder / f"{identifier(name)}{form.suffix}"
    file.write_text(form.write(program, Origin(name, "test", 7)), encoding="utf-8")
    inputs = question.inputs
    arrays = [
        *(inputs[f"obs_{k}"] for k in range(len(program.sensors))),
        *([inputs["action_masks"]] if program.branches else []),
        *([inputs["recurrent_in"]] if program.memory_size else []),
        question.random,
    ]
    flat = np.concatenate([np.ascontiguousarray(each, "<f4").ravel() for each in arrays])
    (folder / f"{identifier(name)}.in").write_bytes(flat.tobytes())
    return Asked(name, file, program, question)


def _answers(asked: Asked, numbers: bytes) -> dict[str, Decisions]:
    """Takes apart what a player wrote: both modes, each with continuous, discrete and memory."""
    values = np.frombuffer(numbers, "<f4")
    program, rows = asked.program, asked.rows
    sizes = [program.continuous_size, len(program.branches), program.memory_size] * 2
    parts = np.split(values, np.cumsum([rows * size for size in sizes]))
    assert len(parts[-1]) == 0, f"{asked.name}: {len(values)} numbers"
    tables = [part.reshape(rows, size) for part, size in zip(parts, sizes, strict=False)]
    return {
        mode: Decisions(tables[k], tables[k + 1].astype(np.int64), tables[k + 2])
        for k, mode in ((0, "deterministic"), (3, "sampled"))
    }


def _read(asked: list[Asked]) -> dict[str, dict[str, Decisions]]:
    return {each.name: _answers(each, each.file.with_suffix(".out").read_bytes()) for each in asked}


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, f"{command[0]}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


# -- C


def play_c(folder: Path, asked: list[Asked], *options: str, compiler: str = "gcc") -> dict[str, dict[str, Decisions]]:
    """Compiles strictly, without optimization unless ``options`` say so."""
    code = ["#include <stdio.h>", "#include <stdlib.h>", *(f'#include "{each.file.name}"' for each in asked)]
    code.append(
        """
static float *load(const char *path, long size) {
  FILE *file = fopen(path, "rb");
  float *values = (float *)malloc((size_t)(size + 1) * sizeof(float));
  if (!file || !values || fread(values, sizeof(float), (size_t)size, file) != (size_t)size) exit(2);
  fclose(file);
  return values;
}
static void save(FILE *file, const float *values, long size) {
  if (fwrite(values, sizeof(float), (size_t)size, file) != (size_t)size) exit(3);
}
"""
    )
    code += map(_c_case, asked)
    code.append("int main(void) {\n" + "".join(f"  case_{_lower(each)}();\n" for each in asked) + "  return 0;\n}\n")
    source = folder / ("main.c" if compiler == "gcc" else "main.cc")
    source.write_text("\n".join(code), encoding="utf-8")
    strict = STRICT if compiler == "gcc" else ("-std=c++11", *STRICT[1:])
    _run(compiler, *strict, *options, source, "-o", folder / "main", "-lm", folder=folder)
    _run(folder / "main", folder=folder)
    return _read(asked)


def _lower(asked: Asked) -> str:
    return identifier(asked.name).lower()


def _c_case(asked: Asked) -> str:
    program, rows, name = asked.program, asked.rows, _lower(asked)
    offsets, at = [], 0
    for size in (*(sensor.size for sensor in program.sensors), sum(program.branches), program.memory_size):
        offsets.append(at)
        at += rows * size
    total = at + rows * program.random_size
    observations = ", ".join(f"in + {offset}" for offset in offsets[: len(program.sensors)])
    mask, memory = offsets[len(program.sensors) :]
    count = len(program.branches)
    stem = asked.file.stem
    return f"""
static void case_{name}(void) {{
  static policy_{name}_workspace workspace;
  float *in = load("{stem}.in", {total});
  float *kept = (float *)malloc({rows * program.memory_size + 1} * sizeof(float));
  float *continuous = (float *)malloc({rows * program.continuous_size + 1} * sizeof(float));
  int *discrete = (int *)malloc({rows * count + 1} * sizeof(int));
  FILE *file = fopen("{stem}.out", "wb");
  const float *const observations[] = {{{observations}}};
  for (int sampled = 0; sampled < 2; sampled++) {{
    memcpy(kept, in + {memory}, {rows * program.memory_size} * sizeof(float));
    policy_{name}_decide(&workspace, {rows}, observations, {f"in + {mask}" if count else "NULL"}, kept,
                         sampled ? in + {at} : NULL, !sampled, continuous, discrete);
    save(file, continuous, {rows * program.continuous_size});
    for (int i = 0; i < {rows * count}; i++) {{
      float value = (float)discrete[i];
      save(file, &value, 1);
    }}
    save(file, kept, {rows * program.memory_size});
  }}
  fclose(file);
  free(in); free(kept); free(continuous); free(discrete);
}}"""


# -- JavaScript


def play_javascript(folder: Path, asked: list[Asked]) -> dict[str, dict[str, Decisions]]:
    """Runs all in one Node."""
    code = ['import { readFileSync, writeFileSync } from "node:fs";']
    for k, each in enumerate(asked):
        code.append(f'import {{ Policy as Policy{k}, sizes as sizes{k} }} from "./{each.file.name}";')
    code.append(
        """
function play(stem, Policy, sizes, rows) {
  const bytes = readFileSync(stem + ".in");
  const numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  let at = 0;
  const take = (size) => numbers.slice(at, (at += rows * size));
  const observations = sizes.observations.map(take);
  const mask = sizes.mask ? take(sizes.mask) : null;
  const memory = take(sizes.memory);
  const random = take(sizes.random);
  const policy = new Policy(rows);
  const out = [];
  for (const deterministic of [true, false]) {
    const kept = memory.slice();
    const actions = policy.decide(observations, mask, kept, deterministic ? null : random, deterministic);
    out.push(...actions.continuous, ...actions.discrete, ...kept);
  }
  writeFileSync(stem + ".out", new Uint8Array(new Float32Array(out).buffer));
}
"""
    )
    code += [f'play("{each.file.stem}", Policy{k}, sizes{k}, {each.rows});' for k, each in enumerate(asked)]
    (folder / "main.mjs").write_text("\n".join(code), encoding="utf-8")
    _run("node", "main.mjs", folder=folder)
    return _read(asked)


# -- C#


def play_csharp(folder: Path, asked: list[Asked]) -> dict[str, dict[str, Decisions]]:
    """Compiles all with Mono's compiler, warnings being errors, and runs them."""
    code = [
        """using System;
using System.IO;
static class Program {
  static float[] numbers; static int at;
  static float[] Take(int size) {
    var part = new float[size];
    Array.Copy(numbers, at, part, 0, size);
    at += size;
    return part;
  }
  static void Load(string path) {
    var bytes = File.ReadAllBytes(path);
    numbers = new float[bytes.Length / 4]; at = 0;
    Buffer.BlockCopy(bytes, 0, numbers, 0, bytes.Length);
  }
  static void Main() {"""
    ]
    for each in asked:
        name = f"Policy{identifier(each.name)}"
        code.append(
            f"""    {{
      Load("{each.file.stem}.in");
      const int rows = {each.rows};
      var observations = new float[{name}.ObservationSizes.Length][];
      for (int k = 0; k < observations.Length; k++) observations[k] = Take(rows * {name}.ObservationSizes[k]);
      var mask = Take(rows * {name}.MaskSize);
      var memory = Take(rows * {name}.MemorySize);
      var random = Take(rows * {name}.RandomSize);
      var policy = new {name}(rows);
      using (var file = new BinaryWriter(File.Create("{each.file.stem}.out")))
        foreach (bool deterministic in new[] {{ true, false }}) {{
          var kept = (float[])memory.Clone();
          policy.Decide(rows, observations, mask, kept, deterministic ? null : random, deterministic);
          foreach (float value in policy.Continuous) file.Write(value);
          foreach (int value in policy.Discrete) file.Write((float)value);
          foreach (float value in kept) file.Write(value);
        }}
    }}"""
        )
    code.append("  }\n}\n")
    (folder / "Main.cs").write_text("\n".join(code), encoding="utf-8")
    files = [each.file.name for each in asked]
    _run("mcs", "-warnaserror", "-optimize+", "Main.cs", *files, "-out:main.exe", folder=folder)
    _run("mono", "main.exe", folder=folder)
    return _read(asked)


# -- GDScript


def play_gdscript(folder: Path, asked: list[Asked]) -> dict[str, dict[str, Decisions]]:
    """Runs all in one Godot, in a browser."""
    code = [
        """extends Node

var answers: Array[String] = []

func play(stem: String, script: Script, rows: int) -> void:
	var numbers := FileAccess.get_file_as_bytes("res://" + stem + ".in").to_float32_array()
	var at := 0
	var observations: Array[PackedFloat32Array] = []
	for size in script.OBSERVATION_SIZES:
		observations.append(numbers.slice(at, at + rows * size))
		at += rows * size
	var mask := numbers.slice(at, at + rows * script.MASK_SIZE)
	at += rows * script.MASK_SIZE
	var memory := numbers.slice(at, at + rows * script.MEMORY_SIZE)
	at += rows * script.MEMORY_SIZE
	var random := numbers.slice(at, at + rows * script.RANDOM_SIZE)
	var policy = script.new(rows)
	var out := PackedFloat32Array()
	for deterministic in [true, false]:
		var kept := memory.duplicate()
		policy.decide(observations, mask, kept, PackedFloat32Array() if deterministic else random, deterministic)
		out.append_array(policy.continuous)
		for choice in policy.discrete:
			out.append(choice)
		out.append_array(kept)
	answers.append("OUT " + stem + " " + Marshalls.raw_to_base64(out.to_byte_array()))

func _ready() -> void:"""
    ]
    code += [f'\tplay("{each.file.stem}", load("res://{each.file.name}"), {each.rows})' for each in asked]
    # The browser hands each print on by itself, in any order and mixed: one print, and time for it to arrive.
    code += ['\tprint(" ".join(answers))', "\tawait get_tree().create_timer(1.0).timeout", "\tget_tree().quit(0)\n"]
    (folder / "main.gd").write_text("\n".join(code), encoding="utf-8")
    files = [name for each in asked for name in (each.file, each.file.with_suffix(".in"))]
    printed = _run(sys.executable, RUN_GODOT, GODOT, "main.gd", *files, "--limit", "1700", folder=folder)
    found = dict(re.findall(r"OUT (\S+) (\S+)", printed))
    return {each.name: _answers(each, base64.b64decode(found[each.file.stem])) for each in asked}


PLAYERS: Mapping[str, Callable[[Path, list[Asked]], dict[str, dict[str, Decisions]]]] = {
    "c": play_c,
    "csharp": play_csharp,
    "js": play_javascript,
    "gdscript": play_gdscript,
}


def missing(language: str) -> str | None:
    """Returns what a language's test needs and is not here."""
    programs = {"c": ("gcc", "g++"), "csharp": ("mcs", "mono"), "js": ("node",), "gdscript": ()}[language]
    absent = [program for program in programs if shutil.which(program) is None]
    if language == "gdscript":
        absent += [] if BROWSER else ["chromium"]
        absent += [] if (GODOT / "index.wasm").is_file() and RUN_GODOT.is_file() else ["Godot's web build"]
    return " and ".join(absent) or None


if __name__ == "__main__":
    for key in PLAYERS:
        if (absent := missing(key)) is not None:
            print(f"Skipped: policies as source code in {key}, which needs {absent}.")
    if BROWSER is None:
        print("Skipped: the example page of a policy in JavaScript, which needs chromium.")
