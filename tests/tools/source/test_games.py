"""The examples of "Your policy in a game" are run, with the policy that they are about."""

from __future__ import annotations

import functools
import http.server
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.learning.nn.specs import behavior, camera, vector
from tests.policies.onnx.test_onnx import random_actor
from tests.tools.source.players import BROWSER, GODOT, RUN_GODOT, missing
from trajtrainer.policies.checkpoints.export_saved import Origin
from trajtrainer.tools.source.write import LANGUAGES, export_source

PAGE = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "games.md"
NUMBER = r"-?\d\.\d+"


def prepare(folder: Path, language: str) -> str:
    """Exports the policy, and returns the page's example in a language."""
    actor = random_actor(behavior([vector(8, "VectorSensor_size8")]))
    form = LANGUAGES[language]
    export_source(actor, actor.spec, folder / f"3DBall{form.suffix}", form, Origin("3DBall", "first", 7))
    tag = {"c": "cpp", "js": "html"}.get(language, language)
    found = re.search(rf"^```{tag}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(missing("c") is not None, reason="needs gcc and g++")
def test_cpp(tmp_path: Path) -> None:
    (tmp_path / "main.cpp").write_text(prepare(tmp_path, "c"))
    run(tmp_path, "g++", "-Wall", "-Wextra", "-Werror", "-O2", "main.cpp", "-o", "balls")
    lines = run(tmp_path, tmp_path / "balls").splitlines()
    assert len(set(lines)) == 3
    assert all(re.fullmatch(f"{NUMBER} {NUMBER}", line) for line in lines)


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_browser(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(prepare(tmp_path, "js"))

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert BROWSER is not None
            url = f"http://127.0.0.1:{server.server_port}/index.html"
            options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
            profile = f"--user-data-dir={tmp_path}/profile"
            page = run(tmp_path, BROWSER, *options, profile, "--virtual-time-budget=2000", "--dump-dom", url)
        finally:
            server.shutdown()
            thread.join()
    assert re.search(f'<p id="actions">{NUMBER} {NUMBER} {NUMBER} {NUMBER}</p>', page)


@pytest.mark.skipif(missing("gdscript") is not None, reason="needs Godot's web build and chromium")
def test_godot(tmp_path: Path) -> None:
    (tmp_path / "balls.gd").write_text(prepare(tmp_path, "gdscript"))
    (tmp_path / "main.gd").write_text(
        "extends Node\n\nfunc _ready() -> void:\n\tadd_child(load('res://balls.gd').new())\n"
        "\tawait get_tree().create_timer(1.0).timeout\n\tget_tree().quit(0)\n"
    )
    printed = run(tmp_path, sys.executable, RUN_GODOT, GODOT, "main.gd", "balls.gd", "3DBall.gd")
    actions = re.findall(r"\[([^\[\]]*)\]", printed)  # two may share a line, as each is handed on by itself
    assert len(set(actions)) >= 3
    assert all(len(line.split(",")) == 4 for line in actions)


# What the example uses of Unity and ML-Agents, and one decision as the academy makes it.
UNITY = """
using System; using System.Collections.Generic; using System.Collections.ObjectModel;
namespace UnityEngine {
  public class GameObject { public T AddComponent<T>() where T : new() { return new T(); } }
  public class MonoBehaviour { public GameObject gameObject = new GameObject(); }
  public static class Random { static readonly System.Random all = new System.Random(1);
    public static float value { get { return (float)all.NextDouble(); } } }
}
namespace Unity.MLAgents.Sensors {
  public class VectorSensor { public List<float> seen = new List<float>();
    public void AddObservation(float value) { seen.Add(value); } }
}
namespace Unity.MLAgents.Actuators {
  public struct ActionSegment<T> {
    readonly T[] array; public ActionSegment(T[] array) { this.array = array; }
    public T this[int k] { get { return array[k]; } set { array[k] = value; } }
  }
  public struct ActionBuffers {
    public ActionSegment<float> ContinuousActions; public ActionSegment<int> DiscreteActions;
  }
}
namespace Unity.MLAgents {
  public class Agent : UnityEngine.MonoBehaviour {
    readonly Sensors.VectorSensor sensor = new Sensors.VectorSensor();
    public ReadOnlyCollection<float> GetObservations() { return sensor.seen.AsReadOnly(); }
    public virtual void Initialize() { }
    public virtual void OnEpisodeBegin() { }
    public virtual void CollectObservations(Sensors.VectorSensor sensor) { }
    public virtual void Heuristic(Actuators.ActionBuffers actionsOut) { }
    public void Decide(Actuators.ActionBuffers actions) {
      sensor.seen.Clear(); CollectObservations(sensor); Heuristic(actions);
    }
  }
}
static class Program {
  static void Main() {
    var agent = new BallAgent();
    var continuous = new float[2];
    var actions = new Unity.MLAgents.Actuators.ActionBuffers {
      ContinuousActions = new Unity.MLAgents.Actuators.ActionSegment<float>(continuous) };
    agent.Initialize(); agent.OnEpisodeBegin();
    for (int k = 0; k < 3; k++) {
      agent.Decide(actions);
      Console.WriteLine(continuous[0].ToString("F3") + " " + continuous[1].ToString("F3"));
    }
  }
}
"""


@pytest.mark.skipif(missing("csharp") is not None, reason="needs mono")
def test_unity(tmp_path: Path) -> None:
    example = prepare(tmp_path, "csharp")
    # Mono's compiler knows C# 7.0, and Unity's 9.
    (tmp_path / "BallAgent.cs").write_text(example.replace("in ActionBuffers", "ActionBuffers"))
    (tmp_path / "Unity.cs").write_text(UNITY)
    sources = ("3DBall.cs", "BallAgent.cs", "Unity.cs")
    run(tmp_path, "mcs", "-warnaserror", "-define:UNITY_5_3_OR_NEWER", *sources, "-out:main.exe")
    lines = run(tmp_path, "mono", "main.exe").splitlines()
    assert len(set(lines)) == 3
    assert all(re.fullmatch(f"{NUMBER} {NUMBER}", line) for line in lines)


@pytest.mark.skipif(missing("csharp") is not None, reason="needs mono")
def test_unity_with_arrays_of_ones_own(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(2, "GoalSignal"), camera(3, 20, 20, "GridCamera")], 0, (5,)))
    export_source(actor, actor.spec, tmp_path / "GridWorld.cs", LANGUAGES["csharp"], Origin("GridWorld", "first", 7))
    found = re.search(
        r"^```\n(var policy = new PolicyGridWorld.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert found is not None
    (tmp_path / "Main.cs").write_text(
        "static class Program { static void Main() {\n"
        "var goals = new float[] { 1, 0, 0, 1 }; var pictures = new float[2 * 3 * 20 * 20];\n"
        "var mask = new float[] { 0, 0, 1, 0, 0, 0, 1, 0, 0, 0 };\n"
        f"{found[1]}\n"
        'System.Console.WriteLine(string.Join(" ", policy.Discrete));\n} }\n'
    )
    run(tmp_path, "mcs", "-warnaserror", "GridWorld.cs", "Main.cs", "-out:main.exe")
    assert run(tmp_path, "mono", "main.exe").split() == ["2", "1"]  # the only ones that the mask leaves
