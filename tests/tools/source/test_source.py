"""Policies as source code decide as their .onnx does, in every language."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.learning.nn.specs import behavior, camera, vector
from tests.policies.onnx.test_onnx import SPECS, random_actor
from tests.tools.source.players import PLAYERS, STRICT, missing, play_c, prepare
from tests.tools.source.reference import Question, ask, differences
from tests.tools.source.shipped import make, shipped
from trajtrainer.core.errors import ExportError
from trajtrainer.core.spec import BehaviorSpec, ObservationKind, observation_kind
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.graph import Graph
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.tools.source import write
from trajtrainer.tools.source.write import LANGUAGES, build_program, export_source

ORIGIN = Origin("Crawler", "first", 500)
# How names of the shipped ones begin that are for every run of the tests; --all-exports takes all.
FEW = (
    "3DBall of actors",
    "Memory of ppo Memory",
    "Match3 of sac Match3",
)


class Drawn(nn.Module):
    """An encoder of a package, of which only the drawing matters here."""

    def __init__(self, draw: Callable[[Graph, str], str]) -> None:
        super().__init__()
        self.draw = draw

    def to_onnx(self, graph: Graph, x: str) -> str:
        return self.draw(graph, x)


def with_encoder(draw: Callable[[Graph, str], str], *, pictures: bool = False) -> Actor:
    """A policy that sees 16 numbers through this encoder, of pictures or as they are."""
    sensor = camera(4, 6, 5) if pictures else vector(16)
    actor = random_actor(behavior([sensor], 2, (3,)), encoder="fully_connected")
    actor.body.encoder.sensors[0] = Drawn(draw)
    return actor


def _random(*shape: int) -> Any:
    return np.random.default_rng(1).normal(0.0, 0.5, shape).astype(np.float32)


def draw_pictures(graph: Graph, x: str) -> str:
    """Groups, dilation, uneven padding, pooling with and without padding, normalization."""
    weight = graph.weight("own.weight", _random(8, 2, 3, 2))
    bias = graph.weight("own.bias", _random(8))
    x = graph.node(
        "Conv", x, weight, bias, group=2, kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[1, 1], dilations=[1, 2]
    )
    names = [graph.weight(f"own.{k}", np.abs(_random(8)) + 0.1) for k in range(4)]
    x = graph.node("Elu", graph.node("BatchNormalization", x, *names), alpha=0.7)
    x = graph.node("MaxPool", x, kernel_shape=[2, 2], pads=[1, 1, 0, 0], strides=[2, 1])
    x = graph.node("AveragePool", x, kernel_shape=[2, 2], strides=[1, 2])
    pooled = [graph.node("Flatten", graph.node(f"Global{kind}Pool", x), axis=1) for kind in ("Average", "Max")]
    return graph.concat(pooled, axis=1)


def draw_numbers(graph: Graph, x: str) -> str:
    """Everything that works on elements, and what changes shapes."""
    functions = ("Abs", "Softplus", "Softsign", "Selu", "HardSigmoid", "Sin", "Cos", "Floor", "Ceil", "Neg", "Sigmoid")
    values = [graph.node(name, x) for name in functions]
    positive = graph.node("Exp", graph.node("Tanh", x))
    values += [graph.node(name, positive) for name in ("Log", "Sqrt", "Reciprocal")]
    values.append(graph.node("Pow", positive, graph.constant(1.5)))
    half = graph.node("Mul", x, graph.constant(0.5))
    for name in ("Less", "Greater"):
        flag = graph.node(name, x, half)
        values.append(graph.node("Cast", flag, to=1))
    values.append(graph.node("Where", graph.node("Less", x, half), positive, half))
    values += [graph.node(name, x, half, positive) for name in ("Max", "Min")]
    values.append(graph.node("PRelu", x, graph.weight("own.slope", _random(16))))
    total = values[0]
    for value in values[1:]:
        total = graph.node("Add", graph.node("Mul", total, graph.constant(0.5)), value)
    table = graph.node("Transpose", graph.reshape(total, [-1, 4, 4]), perm=[0, 2, 1])
    square = graph.node("MatMul", table, graph.reshape(x, [-1, 4, 4]))
    largest = graph.node("ReduceMax", square, axes=[1], keepdims=0)
    smallest = graph.node("ReduceMin", square, axes=[-1], keepdims=0)
    left, right = graph.nodes("Split", [graph.reshape(square, [-1, 16])], ["left", "right"], axis=1, split=[10, 6])
    folded = graph.node("Sqrt", graph.node("Abs", graph.weight("own.row", _random(6))))
    parts = [largest, smallest, graph.node("Mul", right, folded), graph.node("LogSoftmax", left, axis=1)]
    return graph.slice(graph.concat(parts, axis=1), axis=1, start=1, end=17)


ENCODERS = {"Encoder of pictures": (draw_pictures, True), "Encoder of numbers": (draw_numbers, False)}


def has_pictures(spec: BehaviorSpec) -> bool:
    """They take so long that a few will do."""
    return any(observation_kind(each) is ObservationKind.VISUAL for each in spec.observation_specs)


def kinds(language: str) -> dict[str, tuple[Actor, Question]]:
    """Every kind of network, and encoders of packages."""
    rows = {"c": 200, "gdscript": 4}.get(language, 40)
    found = {}
    for name, (spec, options) in SPECS.items():
        actor = random_actor(spec, **options)
        found[name] = (actor, ask(actor, min(rows, 20) if has_pictures(spec) else rows))
    drawn = {name: with_encoder(draw, pictures=pictures) for name, (draw, pictures) in ENCODERS.items()}
    return found | {name: (actor, ask(actor, 20)) for name, actor in drawn.items()}


def configurations(language: str, *, all_of_them: bool) -> dict[str, tuple[Actor, Question]]:
    """Shipped ones."""
    found = {}
    for name, spec, network, kind in shipped(() if all_of_them else FEW):
        actor = make(spec, network, kind)
        rows = 20 if has_pictures(spec) else 10_000 if language == "c" else 500
        found[name] = (actor, ask(actor, rows if all_of_them else max(2, rows // 50)))
    return found


@pytest.fixture(scope="module", params=sorted(PLAYERS))
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Each policy, with what its source code in a language decides differently. They are all in one program, as
    compilers, Mono and Godot take seconds to start."""
    language: str = request.param
    if (absent := missing(language)) is not None:
        pytest.skip(f"{language} needs {absent}")
    all_of_them = request.config.getoption("--all-exports")
    policies = kinds(language) | configurations(language, all_of_them=all_of_them)
    folder = tmp_path_factory.mktemp(language)
    asked = [prepare(folder, language, name, *policy) for name, policy in policies.items()]
    answers = PLAYERS[language](folder, asked)
    modes = ("deterministic", "sampled")
    return {
        each.name: [wrong for mode in modes for wrong in differences(each.question, mode, answers[each.name][mode])]
        for each in asked
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_kind_of_network(compared: dict[str, list[str]]) -> None:
    assert {name: wrong for name in SPECS if (wrong := compared[name])} == {}


@pytest.mark.timeout(3600)
def test_the_shipped_configurations(compared: dict[str, list[str]]) -> None:
    of_configurations = compared.keys() - SPECS.keys() - ENCODERS.keys()
    assert len(of_configurations) >= len(FEW)
    assert {name: wrong for name in of_configurations if (wrong := compared[name])} == {}


def test_it_is_known_what_the_agents_of_every_configuration_see_and_do() -> None:
    names = [name for name, *_ in shipped()]
    assert len(names) == len(set(names))
    assert {each for each in FEW if not any(name.startswith(each) for name in names)} == set()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders_of_packages(compared: dict[str, list[str]], name: str) -> None:
    assert compared[name] == []


def test_an_operator_without_a_form_is_named() -> None:
    actor = with_encoder(lambda graph, x: graph.node("Erf", x))
    with pytest.raises(ExportError, match=r"the operator Erf is not supported .*'Erf_0'"):
        build_program(actor, actor.spec, columns=True)


REFUSED: dict[str, tuple[Callable[[Graph, str], str], bool]] = {
    "Softmax across agents": (lambda graph, x: graph.node("Softmax", x, axis=0), False),
    "Flatten across agents": (lambda graph, x: graph.node("Flatten", x, axis=0), False),
    "Reshape across agents": (lambda graph, x: graph.reshape(x, [4, -1]), False),
    "MatMul across agents": (
        lambda graph, x: graph.node("MatMul", x, graph.node("Transpose", x, perm=[1, 0])),
        False,
    ),
    "Gemm with weights that are computed": (lambda graph, x: graph.node("Gemm", x, graph.node("Tanh", x)), False),
    "Concat of values that depend on the agent and values that do not": (
        lambda graph, x: graph.concat([x, graph.weight("own.row", _random(1, 3))], axis=1),
        False,
    ),
    "Cast to types other than float": (lambda graph, x: graph.node("Cast", x, to=7), False),
    "Squeeze without axes": (lambda graph, x: graph.node("Squeeze", graph.node("Unsqueeze", x, axes=[1])), False),
    "Conv with auto_pad": (
        lambda graph, x: graph.node("Conv", x, graph.weight("own.w", _random(2, 4, 3, 3)), auto_pad="SAME_UPPER"),
        True,
    ),
    "Conv of this kind": (lambda graph, x: graph.node("Conv", x, graph.node("Tanh", x)), True),
    "MaxPool for anything but images, or with ceil_mode": (
        lambda graph, x: graph.node("MaxPool", x, kernel_shape=[2, 2], ceil_mode=1),
        True,
    ),
    "AveragePool that leaves the padding out": (
        lambda graph, x: graph.node("AveragePool", x, kernel_shape=[2, 2], pads=[1, 1, 0, 0]),
        True,
    ),
    "BatchNormalization with weights that are computed": (
        lambda graph, x: graph.node("BatchNormalization", x, *[graph.node("Tanh", x)] * 4),
        True,
    ),
}


@pytest.mark.parametrize("refusal", REFUSED)
def test_a_use_of_an_operator_without_a_form_is_named(refusal: str) -> None:
    draw, pictures = REFUSED[refusal]
    actor = with_encoder(draw, pictures=pictures)
    with pytest.raises(ExportError, match=f"the operator {refusal} is not supported .it computes "):
        build_program(actor, actor.spec, columns=True)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "policies").write_text("a file")
    actor = random_actor(behavior([vector(3)]))
    with pytest.raises(ExportError, match=r"The policy could not be written to .*policies/a\.h: "):
        export_source(actor, actor.spec, tmp_path / "policies" / "a.h", LANGUAGES["c"], ORIGIN)


def test_too_many_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "MOST_WEIGHTS", 100)
    actor = random_actor(behavior([vector(7)]))
    with pytest.raises(ExportError, match=r"weights, but source code can have at most 100\. Use its \.onnx"):
        export_source(actor, actor.spec, tmp_path / "a.h", LANGUAGES["c"], ORIGIN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(missing("c") is not None, reason="needs gcc and g++")
@pytest.mark.parametrize(("compiler", "options"), [("gcc", ("-O2",)), ("gcc", ("-O3", "-march=native")), ("g++", ())])
def test_compilers(tmp_path: Path, compiler: str, options: tuple[str, ...]) -> None:
    actor = random_actor(behavior([vector(7), vector(3)], 2, (3, 2)), memory=12)
    asked = prepare(tmp_path, "c", "Crawler", actor, ask(actor, 200))
    answers = play_c(tmp_path, [asked], *options, compiler=compiler)["Crawler"]
    assert [differences(asked.question, mode, answers[mode]) for mode in answers] == [[], []]


@pytest.mark.skipif(missing("c") is not None, reason="needs gcc and g++")
def test_c_keeps_no_state_and_allocates_nothing(tmp_path: Path) -> None:
    """So any number of threads may decide at once, each with a workspace."""
    actor = random_actor(SPECS["goal, entities and memory"][0], memory=8)
    export_source(actor, actor.spec, tmp_path / "p.h", LANGUAGES["c"], ORIGIN)
    (tmp_path / "p.c").write_text(
        '#include "p.h"\n'
        "void (*decide)(policy_crawler_workspace *, int, const float *const[], const float *, float *, const float *,\n"
        "               int, float *, int *);\n"
        "void set(void) { decide = policy_crawler_decide; }\n"
    )
    subprocess.run(["gcc", *STRICT, "-c", "p.c"], cwd=tmp_path, check=True)
    symbols = subprocess.run(["nm", "p.o"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    kinds = [line.split()[-2:] for line in symbols.splitlines()]
    assert [name for kind, name in kinds if kind in "bBdDcC"] == ["decide"]
    used = {name for kind, name in kinds if kind == "U"}
    assert used <= {"expf", "logf", "sqrtf", "cosf", "sinf", "tanhf", "memcpy", "memmove"}


@pytest.mark.skipif(missing("c") is not None, reason="needs gcc and g++")
def test_without_a_mask_everything_is_allowed(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(7)], 0, (3, 2)))
    question = ask(actor, 50)
    question.inputs["action_masks"][:] = 1.0
    asked = prepare(tmp_path, "c", "Crawler", actor, question)
    masked = play_c(tmp_path, [asked])["Crawler"]
    header = tmp_path / "Crawler.h"
    header.write_text(header.read_text().replace("mask != 0", "0"))
    free = play_c(tmp_path, [asked])["Crawler"]
    assert np.array_equal(masked["sampled"].discrete, free["sampled"].discrete)


# What the component uses of Unity and ML-Agents.
UNITY = """
using System; using System.Collections.Generic; using System.Collections.ObjectModel;
namespace UnityEngine {
  public class MonoBehaviour { }
  public static class Random { public static float value = 1.0f; }
}
namespace Unity.MLAgents.Actuators {
  public struct ActionSegment<T> {
    readonly T[] array; public ActionSegment(T[] array) { this.array = array; }
    public T this[int k] { get { return array[k]; } set { array[k] = value; } }
  }
  public struct ActionBuffers {
    public ActionBuffers(float[] continuous, int[] discrete) {
      ContinuousActions = new ActionSegment<float>(continuous); DiscreteActions = new ActionSegment<int>(discrete);
    }
    public ActionSegment<float> ContinuousActions { get; } public ActionSegment<int> DiscreteActions { get; }
  }
}
namespace Unity.MLAgents {
  public class Agent {
    public List<float> seen = new List<float>();
    public ReadOnlyCollection<float> GETTER() { return seen.AsReadOnly(); }
  }
}
static class Program {
  static void Main() {
    var agent = new Unity.MLAgents.Agent();
    for (int i = 0; i < 6; i++) agent.seen.Add(0.25f * i);
    var component = new PolicyCrawlerHeuristic { Deterministic = true, Mask = new float[] { 0, 1, 0, 1, 1 } };
    float[] continuous = new float[2]; int[] discrete = new int[2];
    for (int round = 0; round < 3; round++) {
      if (round == 2) component.BeginEpisode();
      component.Fill(agent, new Unity.MLAgents.Actuators.ActionBuffers(continuous, discrete));
      Console.WriteLine(continuous[0].ToString("R") + " " + continuous[1].ToString("R") + " " + discrete[0]);
    }
    component.Deterministic = false;
    component.Fill(agent, new Unity.MLAgents.Actuators.ActionBuffers(continuous, discrete));
  }
}
"""


@pytest.mark.skipif(missing("csharp") is not None, reason="needs mono")
@pytest.mark.parametrize(
    ("sensor", "getter"),
    [("VectorSensor_size6", "GetObservations"), ("StackingSensor_size3_VectorSensor_size2", "GetStackedObservations")],
)
def test_the_component_for_unity(tmp_path: Path, sensor: str, getter: str) -> None:
    actor = random_actor(behavior([vector(6, sensor)], 2, (3, 2)), memory=8)
    export_source(actor, actor.spec, tmp_path / "p.cs", LANGUAGES["csharp"], ORIGIN)
    (tmp_path / "unity.cs").write_text(UNITY.replace("GETTER", getter))
    command = ["mcs", "-warnaserror", "-define:UNITY_5_3_OR_NEWER", "p.cs", "unity.cs", "-out:main.exe"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["mono", "main.exe"], cwd=tmp_path, check=True, capture_output=True, text=True)
    first, second, again = (line.split() for line in done.stdout.splitlines())
    mask, memory = torch.tensor([[True, False, True, False, False]]), torch.zeros(1, 8)
    with torch.no_grad():
        distribution, _ = actor.distribution([torch.arange(6.0)[None] * 0.25], mask, memory)
        wanted = distribution.to_env(distribution.deterministic().continuous)[0].numpy()
    assert np.allclose([float(each) for each in first[:2]], wanted, rtol=1e-4, atol=1e-5)
    assert first[2] == "1"  # the only one that the mask leaves
    assert again == first != second  # the memory is kept, and cleared when an episode begins


def test_other_sensors_have_no_component(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(6, "VectorSensor_size6"), vector(3, "Rays")]))
    export_source(actor, actor.spec, tmp_path / "p.cs", LANGUAGES["csharp"], ORIGIN)
    text = (tmp_path / "p.cs").read_text()
    assert "There is no component for Unity here" in text
    assert "MonoBehaviour" not in text


@pytest.mark.skipif(missing("js") is not None, reason="needs node")
def test_stacking_and_wrong_sizes_in_javascript(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(6, "StackingSensor_size3_Eyes")]))
    export_source(actor, actor.spec, tmp_path / "p.mjs", LANGUAGES["js"], ORIGIN)
    assert "3 frames of 2, oldest first" in (tmp_path / "p.mjs").read_text()
    (tmp_path / "main.mjs").write_text(
        """import { Policy, stack } from "./p.mjs";
const stacked = new Float32Array(6);
for (const k of [1, 2, 3, 4]) stack(stacked, new Float32Array([k, 10 * k]));
console.log(stacked.join(" "));
try { new Policy(2).decide([new Float32Array(18)], null, null, null, true); } catch (e) { console.log(e.message); }
try { new Policy(2).decide([new Float32Array(12)]); } catch (e) { console.log(e.message); }
"""
    )
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "2 20 3 30 4 40",
        "3 agents, but the policy was made for 2",
        "random: expected 4 numbers, got none",
    ]


@pytest.mark.parametrize("key", sorted(LANGUAGES))
def test_the_comment_says_what_it_is(tmp_path: Path, key: str) -> None:
    actor = random_actor(behavior([camera(3, 20, 24, "Eye */ x\n"), vector(4, "Legs")], 2, (3, 2)), memory=12)
    path = tmp_path / "policy"
    export_source(actor, actor.spec, path, LANGUAGES[key], ORIGIN)
    text = path.read_text(encoding="utf-8")
    head = text[: text.index("Random:") + 80]
    for words in (
        "The policy of 'Crawler' of the run 'first' after 500 steps",
        "License: Apache-2.0",
        "0: 'Eye * / x\\\\n', 3 x 20 x 24 (channels, height, width; pixels from 0 to 1)",
        "1: 'Legs', 4",
        "2 continuous",
        "2 discrete branches of 3, 2 actions",
        "Mask: 5 numbers per agent",
        "Memory: 12 numbers per agent",
        "Random: 4 numbers per agent",
    ):
        assert words in head
    first = text
    export_source(actor, actor.spec, path, LANGUAGES[key], ORIGIN)
    assert path.read_text(encoding="utf-8") == first  # the same weights give the same file
