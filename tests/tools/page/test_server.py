"""The page's server, asked as a browser asks it, and as nobody should."""

from __future__ import annotations

import contextlib
import gc
import http.client
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'page'")
pytest.importorskip("uvicorn", reason="needs the extra 'page'")

from tests.policies.folder.runs import REWARD, make_run, write_events
from tests.tools.page.serving import LIMIT_S, Served, serving
from trajtrainer.cli.main import main
from trajtrainer.policies.folder.notes import notes_file
from trajtrainer.policies.folder.run_folder import RunFolder
from trajtrainer.policies.folder.run_lock import stop_file
from trajtrainer.settings.run import CheckpointSettings
from trajtrainer.tools.page import server as server_module
from trajtrainer.tools.page.guard import CSRF_HEADER, Access
from trajtrainer.tools.page.server import bind
from trajtrainer.tools.page.viewer import Viewer

KNOWN = {"Authorization": "Bearer right-token"}
SCRIPTS = [each.name for each in Path(server_module.__file__).with_name("static").glob("*.js")]
EVIL = '<img src=x onerror="alert(1)">'


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "results"
    make_run(folder, "ball")
    make_run(folder, EVIL, gain=2.0)
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "ball" / "Ball" / "stolen.onnx").symlink_to(folder.parent / "secret.txt")
    return folder


@pytest.fixture(scope="module")
def served(results: Path) -> Iterator[Served]:
    with serving(results) as found:
        yield found


class TestAnswers:
    def test_the_page_and_its_parts_with_headers_that_let_nothing_else_in(self, served: Served) -> None:
        for path, kind in (("/", "text/html"), ("/main.js", "javascript"), ("/uplot/uPlot.iife.min.js", "javascript")):
            status, headers, body = served.ask(path)
            assert status == 200
            assert kind in headers["content-type"]
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert body
        for folder in ("uplot", "preact"):
            assert served.ask(f"/{folder}/LICENSE")[0] == 200
        assert served.ask("/api/runs")[1]["cache-control"] == "no-store"

    def test_no_script_or_style_stands_in_the_page_itself(self, served: Served) -> None:
        page = served.ask("/")[2].decode()
        assert "<script>" not in page
        assert "<style" not in page
        assert "style=" not in page
        for name in SCRIPTS:
            code = served.ask(f"/{name}")[2].decode()
            for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function"):
                assert word not in code

    def test_runs_curves_and_details(self, served: Served) -> None:
        assert [run["id"] for run in served.get("runs")] == [EVIL, "ball"]
        found = served.get("series", run=["ball", EVIL], behavior="Ball", tag=REWARD, points=10)
        assert len(found["ball"]["mean"]) == 10
        assert found[EVIL]["high"][-1] == 40
        assert served.get("run", run=EVIL)["id"] == EVIL
        assert served.get("tags", run="ball")["ball"]["tags"]["Ball"] == [REWARD, "Losses/Policy Loss"]
        assert "boom" in served.get("log", run="ball", name="trainer.log")["text"]
        part = served.get("series", run="ball", behavior="Ball", tag=REWARD, **{"from": 1000, "to": 1200})
        assert part["ball"]["steps"] == [900, 1000, 1100, 1200, 1300]

    @pytest.mark.parametrize(
        "query", [{"points": "x"}, {"points": "1e99"}, {"from": "nan", "to": "-inf"}, {"by": "time"}]
    )
    def test_wrong_numbers_are_no_harm(self, served: Served, query: dict[str, str]) -> None:
        found = served.get("series", run=["ball", "no"], behavior="Ball", tag=REWARD, **query)
        assert len(found["ball"]["mean"]) >= 1

    def test_what_is_not_there_is_told(self, served: Served) -> None:
        for path, query in (("run", {"run": "no"}), ("log", {"run": "ball", "name": "x"}), ("file", {"run": "ball"})):
            status, _, body = served.ask(f"/api/{path}", **query)
            assert status == 404
            assert json.loads(body)["error"]
        assert served.ask("/api/nothing")[0] == 404
        assert served.ask("/api/runs", None, "DELETE")[0] == 405

    def test_files_are_saved_and_never_shown(self, served: Served) -> None:
        status, headers, body = served.ask("/api/file", run="ball", path="Ball/Ball-2000.onnx")
        assert (status, body) == (200, b"Ball/Ball-2000.onnx")
        assert headers["content-type"] == "application/octet-stream"
        assert headers["content-disposition"] == "attachment; filename*=UTF-8''Ball-2000.onnx"

    @pytest.mark.parametrize(
        "path",
        [
            "../../secret.txt",
            "Ball/../../../secret.txt",
            "/etc/hostname",
            "Ball/stolen.onnx",
            "..",
            "Ball",
            "Ball/..%2f..%2f..%2fsecret.txt",
            "Ball\\..\\..\\..\\secret.txt",
            "Ball/Ball-2000.onnx\0.txt",
        ],
    )
    def test_nothing_outside_of_the_folder_is_read(self, served: Served, path: str) -> None:
        status, _, body = served.ask("/api/file", run="ball", path=path)
        assert status == 404
        assert b"secret\n" not in body
        for run in ("..", "../results", "ball/../ball", "."):
            assert served.ask("/api/file", run=run, path="Ball.onnx")[0] == 404

    def test_films_are_played_in_parts(self, tmp_path: Path) -> None:
        run = make_run(tmp_path, "ball")
        film = bytes(range(256)) * 4
        (run / "evaluation.mp4").write_bytes(film)
        (run / "Ball" / "other.GIF").write_bytes(film)
        (run / "stolen.mp4").symlink_to(run / "configuration.yaml")
        with serving(tmp_path) as served:
            for path, kind in (("evaluation.mp4", "video/mp4"), ("Ball/other.GIF", "image/gif")):
                status, headers, body = served.ask("/api/film", run="ball", path=path)
                assert (status, headers["content-type"], body) == (200, kind, film)
                assert headers["accept-ranges"] == "bytes"
            for asked, part, place in (
                ("bytes=0-9", film[:10], "0-9"),
                ("bytes=1000-", film[1000:], "1000-1023"),
                ("bytes=1000-5000", film[1000:], "1000-1023"),
                ("bytes=-24", film[-24:], "1000-1023"),
                ("bytes=-5000", film, "0-1023"),
            ):
                status, headers, body = served.ask("/api/film", {"Range": asked}, run="ball", path="evaluation.mp4")
                assert (status, headers["content-range"], body) == (206, f"bytes {place}/1024", part)
            for asked in ("bytes=1024-", "bytes=5-4", "bytes=-0"):
                status, headers, _ = served.ask("/api/film", {"Range": asked}, run="ball", path="evaluation.mp4")
                assert (status, headers["content-range"]) == (416, "bytes */1024")
            for asked in ("lines=1-2", "bytes=1-2,5-6", "bytes=-", "bytes=x-"):  # the standard has these ignored
                assert served.ask("/api/film", {"Range": asked}, run="ball", path="evaluation.mp4")[0::2] == (200, film)
            for path in ("configuration.yaml", "stolen.mp4", "no.mp4", "../x.mp4"):
                assert served.ask("/api/film", run="ball", path=path)[0] == 404

    @pytest.mark.parametrize("path", ["/../../pyproject.toml", "/%2e%2e/server.py", "/..%2fserver.py", "//etc/passwd"])
    def test_static_files_are_the_pages_own(self, served: Served, path: str) -> None:
        assert served.ask(path)[0] == 404


class TestAccess:
    @pytest.mark.parametrize("host", ["evil.example", "evil.example:6080", "127.0.0.1.evil.example", "", "10.0.0.1"])
    def test_other_names_for_this_machine_are_refused(self, served: Served, host: str) -> None:
        """As a page of the web would use that has let its own name point here."""
        status, _, body = served.ask("/api/session", {"Host": host})
        assert status == 421
        assert served.access.csrf.encode() not in body

    def test_its_own_names_are_not(self, served: Served) -> None:
        for host in ("localhost", f"127.0.0.1:{served.port}", "[::1]:1", "LOCALHOST:9000"):
            assert served.ask("/api/session", {"Host": host})[0] == 200

    def test_beyond_this_machine_everything_needs_the_token(self, results: Path) -> None:
        with serving(results, host="0.0.0.0", token="right-token") as served:
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": "Bearer "},
                {"Cookie": f"{served.access.cookie}=wröng".encode().decode("latin-1")},
                {"Cookie": "other=right-token"},
            ):
                for path in ("/", "/main.js", "/api/runs", "/api/session", "/api/stream"):
                    assert served.ask(path, headers)[0] == 401
            assert served.ask("/api/runs", token="right-token")[0] == 401, "in the address of the page only"
            assert served.ask("/", token="wrong")[0] == 401
            assert served.ask("/api/runs", {"Authorization": "Bearer right-token"})[0] == 200
            status, answered, _ = served.ask("/", token="right-token")
            assert (status, answered["location"]) == (303, ".")
            cookie = answered["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=lax" in cookie
            assert served.ask("/api/runs", {"Cookie": cookie.partition(";")[0]})[0] == 200
            known = {"Authorization": "Bearer right-token"}
            assert served.ask("/api/runs", {**known, "Host": "192.168.1.7:6080"})[0] == 200
            assert served.ask("/api/runs", {**known, "Host": f"{socket.gethostname()}:6080"})[0] == 200
            assert served.ask("/api/runs", {**known, "Host": "evil.example"})[0] == 421

    def test_a_run_is_stopped_by_the_page_only(self, results: Path, served: Served) -> None:
        run = results / "ball"
        folder = RunFolder(CheckpointSettings(run_id="ball", resume=True, results_dir=str(results)))
        csrf = served.get("session")["csrf"]
        own = f"http://127.0.0.1:{served.port}"
        with folder.exclusive():
            for headers in (
                {},
                {CSRF_HEADER: "wrong"},
                {CSRF_HEADER: csrf, "Sec-Fetch-Site": "cross-site"},
                {CSRF_HEADER: csrf, "Sec-Fetch-Site": "same-site"},
                {CSRF_HEADER: csrf, "Origin": "http://evil.example"},
                {CSRF_HEADER: csrf, "Origin": "null"},
            ):
                assert served.ask("/api/stop", headers, "POST", run="ball")[0] == 403
            assert served.ask("/api/stop", {CSRF_HEADER: csrf}, run="ball")[0] == 405, "no GET"
            assert not stop_file(run).exists()
            headers = {CSRF_HEADER: csrf, "Origin": own, "Sec-Fetch-Site": "same-origin"}
            assert served.ask("/api/stop", headers, "POST", run="ball")[0] == 200
            assert folder.take_stop()
        assert served.ask("/api/stop", {CSRF_HEADER: csrf}, "POST", run="ball")[0] == 404, "it is over"
        for run_id in ("", "..", "../results/ball", "no"):
            assert served.ask("/api/stop", {CSRF_HEADER: csrf}, "POST", run=run_id)[0] == 404

    def test_notes_are_written_by_the_page_only(self, results: Path, served: Served) -> None:
        csrf = served.get("session")["csrf"]
        own = {CSRF_HEADER: csrf, "Sec-Fetch-Site": "same-origin"}
        change: dict[str, Any] = {"text": "Good.", "seen": "", "labels": ["b", " a ", "b"], "archived": True}

        def put(headers: dict[str, str], run: str = "ball", /, **content: Any) -> tuple[int, Any]:
            status, _, body = served.ask("/api/notes", headers, "POST", json.dumps(content).encode(), run=run)
            return status, json.loads(body)

        for headers in ({}, {CSRF_HEADER: "wrong"}, {CSRF_HEADER: csrf, "Sec-Fetch-Site": "cross-site"}):
            assert put(headers, **change)[0] == 403
        assert not notes_file(results / "ball").exists()
        assert put(own, **change) == (200, {})
        found = served.get("run", run="ball")
        assert (found["notes"], found["labels"], found["archived"]) == ("Good.", ["a", "b"], True)
        written = json.loads(notes_file(results / "ball").read_text())
        assert [mark.partition(" ")[0] for mark in written.pop("about")] == ["log", "events"]
        assert written == {
            "text": "Good.",
            "labels": ["a", "b"],
            "archived": True,
        }
        assert not [path for path in (results / "ball").rglob("*") if "notes" in path.name], "the folder is the run's"
        status, content = put(own, text="Better.", seen="")
        assert (status, "Someone else" in content["error"]) == (400, True)
        assert put(own, text="Better.", seen="Good.") == (200, {})
        mistakes: list[dict[str, Any]] = [
            {"text": 1, "seen": "Better."},
            {"text": "x"},
            {"labels": "abc"},
            {"labels": ["x" * 41]},
            {"labels": ["a", 1]},
            {"archived": 1},
            {"other": 1},
            {"text": "x" * 20_001, "seen": "Better."},
        ]
        for wrong in mistakes:
            assert put(own, **wrong)[0] == 400, wrong
        assert served.ask("/api/notes", own, "POST", b"[" * 100_000, run="ball")[0] == 400
        assert served.ask("/api/notes", own, "POST", b"x" * 300_000, run="ball")[0] == 413
        for run_id in ("", "..", "../results/ball", "no"):
            assert put(own, run_id, archived=True)[0] == 404
        assert served.get("run", run="ball")["notes"] == "Better."
        assert put(own, text="", seen="Better.", labels=[], archived=False) == (200, {})
        assert not notes_file(results / "ball").exists()

    def test_the_token_is_compared_in_constant_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compared: list[Any] = []
        monkeypatch.setattr("trajtrainer.tools.page.guard.secrets.compare_digest", lambda *both: compared.append(both))
        Access("0.0.0.0", 1, "token").has_token("t")
        assert compared == [(b"t", b"token")]


class TestStream:
    def events(self, served: Served, run: str) -> Generator[tuple[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT_S)
        connection.request("GET", f"/api/stream?run={run}")
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        try:
            while True:
                kind = answer.readline().decode().strip().removeprefix("event: ")
                content = answer.readline().decode().strip().removeprefix("data: ")
                answer.readline()
                yield kind, json.loads(content)
        finally:
            connection.close()

    def test_what_is_new_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "_PAUSE_S", 0.02)
        monkeypatch.setattr("trajtrainer.tools.page.viewer._LIST_S", 0.02)
        make_run(tmp_path, "ball")
        with serving(tmp_path) as served:
            events = self.events(served, "ball")
            kind, runs = next(events)
            assert (kind, [run["id"] for run in runs]) == ("runs", ["ball"])
            assert next(events) == ("changed", ["ball"])
            time.sleep(0.1)
            write_events(tmp_path / "ball" / "Ball", [(2100, {REWARD: 21.0})])
            kind = ""
            until = time.monotonic() + LIMIT_S
            while kind != "changed" and time.monotonic() < until:
                kind, content = next(events)
            assert content == ["ball"]
            found = served.get("series", run="ball", behavior="Ball", tag=REWARD)
            assert found["ball"]["mean"][-1] == 21
            make_run(tmp_path, "new")
            while "new" not in str(content) and time.monotonic() < until:
                kind, content = next(events)
            assert [run["id"] for run in content] == ["ball", "new"]
            events.close()

    def test_there_are_not_too_many(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "_MOST_STREAMS", 1)
        events = self.events(served, "ball")
        next(events)
        assert served.ask("/api/stream")[0] == 503
        events.close()


class TestLoad:
    """Everything at this machine's loopback, a few hundred connections, for some seconds at most."""

    @pytest.fixture
    def connect(self) -> Iterator[Callable[..., socket.socket]]:
        """Makes connections that are closed at the end, if not before."""
        with contextlib.ExitStack() as stack:

            def connected(served: Served, request: bytes = b"") -> socket.socket:
                found = socket.create_connection(("127.0.0.1", served.port), timeout=LIMIT_S)
                stack.enter_context(contextlib.closing(found))
                found.sendall(request)
                return found

            yield connected

    def get(self, path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer right-token\r\n\r\n".encode()

    @pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n"], ids=["nothing", "half a request"])
    def test_connections_that_ask_for_nothing_keep_nobody_out(
        self, results: Path, connect: Callable[..., socket.socket], sent: bytes
    ) -> None:
        with serving(results, host="0.0.0.0", token="right-token") as served:
            for number in range(500):
                connect(served, sent)
                if number % 100 == 99:
                    assert served.ask("/api/runs", KNOWN)[0] == 200
            assert served.ask("/", KNOWN)[0] == 200

    @pytest.mark.parametrize("sent", [b"", b"GET / HT", b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nX: "])
    def test_they_are_closed_after_a_while_even_if_they_send_a_little(
        self, results: Path, connect: Callable[..., socket.socket], sent: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trajtrainer.tools.page.guard.REQUEST_S", 0.3)
        with serving(results, host="0.0.0.0", token="right-token") as served:
            slow = connect(served, sent)
            slow.settimeout(0.02)
            until = time.monotonic() + LIMIT_S
            while time.monotonic() < until:
                with contextlib.suppress(TimeoutError):
                    assert slow.recv(1) == b""
                    break
                slow.sendall(b"x" if sent else b"")
            else:
                pytest.fail("it is still open")

    def test_a_refused_request_ends_its_connection(self, results: Path, connect: Callable[..., socket.socket]) -> None:
        with serving(results, host="0.0.0.0", token="right-token") as served:
            for request in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n"):
                with connect(served, request).makefile("rb") as answer:
                    assert answer.readline().split()[1] in (b"401", b"421")
                    answer.read()  # up to its end

    def test_the_limit_of_streams_holds_for_those_that_come_together(
        self, results: Path, connect: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        apis: list[server_module.Api] = []

        class Known(server_module.Api):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                apis.append(self)

        monkeypatch.setattr(server_module, "Api", Known)
        with serving(results, host="0.0.0.0", token="right-token") as served:
            request = self.get("/api/stream?run=ball")
            for _ in range(2):  # those that have ended count no more
                with ThreadPoolExecutor(100) as threads:
                    streams = list(threads.map(lambda _: connect(served, request), range(100)))
                answers = [stream.recv(12) for stream in streams]
                assert answers.count(b"HTTP/1.1 200") == server_module._MOST_STREAMS
                assert answers.count(b"HTTP/1.1 503") == 100 - server_module._MOST_STREAMS
                for stream in streams:
                    stream.close()
                until = time.monotonic() + LIMIT_S
                while apis[0]._streams:  # until the server has seen that they are closed
                    assert time.monotonic() < until
                    time.sleep(0.02)

    def test_the_limit_of_requests_counts_those_that_are_let_in(
        self, results: Path, connect: Callable[..., socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trajtrainer.tools.page.guard._MAX_REQUESTS", 2)
        with serving(results, host="0.0.0.0", token="right-token") as served:
            streams = [connect(served, self.get("/api/stream")) for _ in range(2)]
            assert [stream.recv(12) for stream in streams] == [b"HTTP/1.1 200"] * 2
            status, _, body = served.ask("/api/runs", KNOWN)
            assert (status, body) == (503, b"Too many requests at once. Try again in a moment.\n")
            assert served.ask("/api/runs")[0] == 401
            for stream in streams:
                stream.close()

    @pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks for open files as Linux shows them")
    @pytest.mark.parametrize("ends", ["closed", "reset", "stalled"])
    def test_files_of_abandoned_downloads_are_closed(
        self, tmp_path: Path, connect: Callable[..., socket.socket], ends: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trajtrainer.tools.page.guard.STALLED_S", 5.0)
        run = make_run(tmp_path, "ball")
        large = run / "Ball" / "large.pt"
        with large.open("wb") as file:
            file.truncate(1 << 28)

        def num_open() -> int:
            found = 0
            for each in Path("/proc/self/fd").iterdir():
                with contextlib.suppress(OSError):
                    found += each.readlink() == large
            return found

        with serving(tmp_path) as served:
            downloads = [connect(served, self.get("/api/file?run=ball&path=Ball/large.pt")) for _ in range(8)]
            assert [each.recv(12) for each in downloads] == [b"HTTP/1.1 200"] * 8
            assert num_open() == 8
            for each in downloads:
                if ends == "reset":
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if ends != "stalled":
                    each.close()
            gc.disable()
            try:
                until = time.monotonic() + LIMIT_S
                while num_open():
                    assert time.monotonic() < until, f"{num_open()} files are still open"
                    time.sleep(0.02)
            finally:
                gc.enable()
                for each in downloads:
                    each.close()
            assert served.ask("/api/file", run="ball", path="Ball/Ball-2000.pt")[2] == b"Ball/Ball-2000.pt"


class TestCommand:
    def test_a_host_that_cannot_be(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for host in ("a..b", "x" * 64):
            assert main(["page", "--results-dir", str(tmp_path), "--host", host]) == 1
            assert f"--host {host}: this machine has no such address" in capsys.readouterr().err

    @pytest.mark.parametrize("arguments", [["page"], ["page", "no"], ["page", "--results-dir", "no"]])
    def test_a_folder_that_does_not_exist_is_waited_for(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with bind("127.0.0.1", 0) as taken:  # so that it ends
            assert main([*arguments, "--port", str(taken.getsockname()[1])]) == 1
        name = "results" if len(arguments) == 1 else "no"
        assert f"There are no runs in {name} yet. The page will show the first one." in capsys.readouterr().out
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("arguments", "runs"),
        [
            (["--results-dir", "elsewhere"], ["ball", "cube"]),
            (["--results-dir=elsewhere", "ball"], ["ball"]),
            (["elsewhere"], ["ball", "cube"]),
            (["elsewhere/cube", "--results-dir", "no"], ["cube"]),
            (["own"], ["own"]),
        ],
    )
    def test_the_results_folder_is_given_as_to_other_commands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], runs: list[str]
    ) -> None:
        make_run(tmp_path / "elsewhere", "ball")
        make_run(tmp_path / "elsewhere", "cube")
        make_run(tmp_path / "results", "own")
        monkeypatch.chdir(tmp_path)
        shown: list[Viewer] = []

        class Server:
            def __init__(self, viewer: Viewer, _access: Access) -> None:
                shown.append(viewer)

            def run(self, sockets: list[socket.socket]) -> None:
                assert sockets

        monkeypatch.setattr(server_module, "make_server", Server)
        assert main(["page", *arguments, "--port", "0"]) == 0
        assert [run["id"] for run in shown[0].summaries()] == runs

    def test_a_folder_that_is_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").touch()
        assert main(["page", str(tmp_path / "file")]) == 1
        assert "is a file" in capsys.readouterr().err

    def test_a_port_that_is_taken(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with bind("127.0.0.1", 0) as taken:
            port = str(taken.getsockname()[1])
            assert main(["page", str(tmp_path), "--port", port]) == 1
        assert f"port {port}" in (said := capsys.readouterr()).err
        assert "--port" in said.err
        assert "There are no runs in" in said.out

    def test_an_address_that_is_not_ours(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["page", str(tmp_path), "--host", "203.0.113.1"]) == 1
        assert "203.0.113.1" in capsys.readouterr().err
        assert main(["page", str(tmp_path), "--port", "65536"]) == 2

    def test_without_the_extra_the_command_to_install_it_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in [
            name for name in sys.modules if name.startswith(("starlette", "uvicorn", "trajtrainer.tools.page"))
        ]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "starlette", None)
        assert main(["page", str(tmp_path)]) == 1
        assert "pip install 'trajtrainer[page]'" in capsys.readouterr().err

    def test_it_is_served_until_ctrl_c(self, results: Path) -> None:
        """The folder of a run alone; without torch, which takes long to load."""
        program = "import sys; sys.modules['torch'] = None\nfrom trajtrainer.cli.main import main; sys.exit(main())"
        command = [sys.executable, "-c", program, "page", str(results / "ball"), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.rstrip("/\n").rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
            connection.request("GET", "/api/runs")
            assert [run["id"] for run in json.loads(connection.getresponse().read())] == ["ball"]
            connection.close()
            process.send_signal(2)
            assert process.wait(LIMIT_S) == 0
