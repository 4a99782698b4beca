"""A small server that answers as the hub does: models are made, files committed (small and large ones) and fetched."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What the server knows.

    Attributes:
        models: name -> path -> content.
        private: name -> whether it was made so.
        fails_with: a status that all requests get.
        announced: path -> size, where another than the true one is announced.
        listing: what is answered instead of a model's files; bytes as they are.
        requests: (method, path) of each.
        tokens: what came as authorization.
    """

    def __init__(self) -> None:
        self.models: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.large: dict[str, bytes] = {}
        self.fails_with: int | None = None
        self.announced: dict[str, int] = {}
        self.listing: Any = None
        self.requests: list[tuple[str, str]] = []
        self.tokens: set[str | None] = set()
        self.url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.pop("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, content: object, status: int = 200) -> None:
        self.answer(status, json.dumps(content).encode(), Content_Type="application/json")

    def handle_any(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self.chunks())
        hub.requests.append((self.command, path))
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.fails_with is not None:
            self.answer_json({"error": "refused"}, hub.fails_with)
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.answer_json({"errors": [], "warnings": []})
        elif path.startswith("/large/"):
            hub.large[path.rpartition("/")[2]] = body
            self.answer(200, ETag='"part"')
        elif path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            self.model(f"{owner}/{name}", rest, body)
        elif path.endswith(".git/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            actions = [{**each, "actions": {"upload": {"href": f"{hub.url}/large/{each['oid']}"}}} for each in asked]
            self.answer_json({"transfer": "basic", "objects": actions})
        else:
            owner, name, resolve, _, *rest = path.removeprefix("/").split("/")
            assert resolve == "resolve"
            self.file(hub.models.get(f"{owner}/{name}", {}).get("/".join(rest)))

    do_GET = do_HEAD = do_POST = do_PUT = handle_any  # noqa: N815

    def chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        if name in self.hub.models:
            self.answer_json({"error": "You already created it", "url": f"{self.hub.url}/{name}"}, 409)
            return
        self.hub.models[name] = {".gitattributes": b"*.pt filter=lfs\n"}
        self.hub.private[name] = asked.get("visibility") == "private"
        self.answer_json({"url": f"{self.hub.url}/{name}", "name": name})

    def model(self, name: str, rest: list[str], body: bytes) -> None:
        files = self.hub.models.get(name)
        if files is None:
            self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        elif rest[:1] == ["preupload"]:
            modes = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith((".pt", ".onnx")) else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            self.answer_json({"files": modes})
        elif rest[:1] == ["commit"]:
            self.commit(files, [json.loads(line) for line in body.splitlines()])
        elif rest[:1] == ["tree"]:
            listed = [self.sibling(path, files) for path in files]
            self.answer_json([{**each, "type": "file", "path": each["rfilename"], "oid": "0" * 40} for each in listed])
        elif isinstance(self.hub.listing, bytes):
            self.answer(200, self.hub.listing)
        elif self.hub.listing is not None:
            self.answer_json(self.hub.listing)
        else:
            self.answer_json({"id": name, "sha": COMMIT, "siblings": [self.sibling(each, files) for each in files]})

    def sibling(self, path: str, files: dict[str, bytes]) -> dict[str, Any]:
        size = self.hub.announced.get(path, len(files[path]))
        sha256 = hashlib.sha256(files[path]).hexdigest()
        lfs = (
            {"size": size, "sha256": sha256, "oid": sha256, "pointerSize": 130}
            if path.endswith((".pt", ".onnx"))
            else None
        )
        return {"rfilename": path, "size": size, **({"lfs": lfs} if lfs else {})}

    def commit(self, files: dict[str, bytes], lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        self.answer_json(
            {"commitOid": COMMIT, "commitUrl": f"{self.hub.url}/some/model/commit/{COMMIT}", "success": True}
        )

    def file(self, content: bytes | None) -> None:
        if content is None:
            self.answer(404, X_Error_Code="EntryNotFound")
            return
        self.answer(200, content, ETag=f'"{hashlib.sha256(content).hexdigest()}"', X_Repo_Commit=COMMIT)


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub for as long as this lasts."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
