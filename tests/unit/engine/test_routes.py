"""The control routes over HTTP: the secret, the bodies, and errors as they travel."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.errors import ErrorBody
from ebbtide_api.state import EngineState
from ebbtide_runtime.engine import routes
from ebbtide_runtime.engine.member import MEMBER
from ebbtide_runtime.engine.routes import ControlRoutes
from fastapi import FastAPI

from tests.support.asgi import Answer, ask
from tests.support.asgi import Answer as _Answer
from tests.support.engine_client import FakeAdapter, FakeClient
from tests.support.members import write_member

SECRET = "correct horse battery staple"


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(routes, "compat", FakeAdapter())
    made, plugin = FastAPI(), ControlRoutes(SECRET.encode())
    plugin.attach_router(made)
    asyncio.run(plugin.init_state(FakeClient(), made.state, argparse.Namespace()))
    return made


def post(app: FastAPI, verb: str, body: Any = None, secret: str | None = SECRET, method: str = "POST") -> Answer:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    headers = [] if secret is None else [(b"ebbtide-secret", secret.encode())]
    scope = {
        "type": "http",
        "method": method,
        "path": f"/ebbtide/v1/{verb}",
        "raw_path": b"",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "http_version": "1.1",
    }
    answer = _Answer()
    sent = iter([{"type": "http.request", "body": raw, "more_body": False}])

    async def main() -> None:
        async def receive() -> Any:
            return next(sent, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            answer.messages.append(dict(message))

        await app(scope, receive, send)

    asyncio.run(main())
    return answer


def test_the_state(app: FastAPI) -> None:
    answer = post(app, "engine", method="GET")
    assert answer.status == 200
    assert EngineState.model_validate(answer.body).kv_blocks == 40


def test_a_whole_update(app: FastAPI) -> None:
    steps: list[tuple[str, dict[str, Any]]] = [
        ("pause", {"mode": "wait", "clearCache": True}),
        ("sleep", {"level": 2}),
        ("wake", {"tag": "weights"}),
        ("reload", {"path": "/good", "version": 5}),
        ("commit", {"version": 5}),
        ("wake", {"tag": "kv_cache"}),
        ("resume", {}),
        ("park", {}),
    ]
    answers = [post(app, verb, body) for verb, body in steps]
    assert [answer.status for answer in answers] == [200] * len(steps)
    state = EngineState.model_validate(answers[-1].body)
    assert (state.weight_version, state.paused) == (5, False)


@pytest.mark.parametrize("verb", ["resume", "park"])
def test_no_body_is_an_empty_one(app: FastAPI, verb: str) -> None:
    assert post(app, verb).status == 200


@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + " ", SECRET[:-1]])
@pytest.mark.parametrize(("verb", "method"), [("engine", "GET"), ("sleep", "POST"), ("nonsense", "POST")])
def test_nothing_without_the_secret(app: FastAPI, secret: str | None, verb: str, method: str) -> None:
    answer = post(app, verb, {"level": 1}, secret, method)
    assert (answer.status, answer.body["code"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("sleep", {}, "level"),
        ("sleep", {"level": "deep"}, "level"),
        ("sleep", {"level": 1, "mode": "x"}, "mode"),
        ("pause", {"clearCache": True}, "mode"),
        ("wake", {}, "tag"),
        ("reload", {"path": "", "version": 1}, "path"),
        ("reload", {"path": "/good", "version": -1}, "version"),
        ("commit", {"version": None}, "version"),
        ("resume", {"force": True}, "force"),
    ],
)
def test_a_wrong_body_names_the_field(app: FastAPI, verb: str, body: Any, field: str) -> None:
    answer = post(app, verb, body)
    assert (answer.status, answer.body["details"]) == (400, {"field": field})


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b"\xff\xfe"])
def test_a_body_that_is_no_object_is_refused(app: FastAPI, body: bytes) -> None:
    answer = post(app, "sleep", body)
    assert (answer.status, answer.body["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("verb", "body", "status", "code"),
    [
        ("sleep", {"level": 7}, 422, "LEVEL_UNSUPPORTED"),
        ("wake", {"tag": "all"}, 400, "INVALID_TAG"),
        ("pause", {"mode": "stop"}, 400, "INVALID_MODE"),
        ("commit", {"version": 9}, 409, "WEIGHTS_NOT_COMMITTED"),
        ("reload", {"path": "/bad", "version": 9}, 500, "ENGINE_FAULTED"),
        ("nonsense", {}, 404, "NOT_FOUND"),
    ],
)
def test_errors_travel_with_code_and_status(app: FastAPI, verb: str, body: Any, status: int, code: str) -> None:
    answer = post(app, verb, body)
    assert (answer.status, ErrorBody.model_validate(answer.body).code) == (status, code)


def test_before_the_engine_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    app, plugin = FastAPI(), ControlRoutes(SECRET.encode())
    plugin.attach_router(app)
    assert post(app, "engine", method="GET").body["code"] == "ENGINE_STARTING"
    asyncio.run(plugin.init_state(None, app.state, argparse.Namespace()))
    assert post(app, "engine", method="GET").status == 503


def test_the_routes_are_in_no_schema(app: FastAPI) -> None:
    assert "ebbtide" not in json.dumps(app.openapi())


def test_in_anybody_elses_vllm_there_are_no_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MEMBER, raising=False)
    app = FastAPI()
    before = len(app.routes)
    ControlRoutes().attach_router(app)
    assert len(app.routes) == before


def test_the_secret_comes_from_the_members_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(MEMBER, str(write_member(tmp_path, secret=SECRET)))
    app = FastAPI()
    ControlRoutes().attach_router(app)
    assert post(app, "engine", secret="wrong wrong wrong", method="GET").status == 401
    assert post(app, "engine", method="GET").body["code"] == "ENGINE_STARTING"


def test_an_unknown_path_is_fastapis_404(app: FastAPI) -> None:
    assert ask(app, {**_scope("/ebbtide/v2/engine")}).status == 404


def _scope(path: str) -> dict[str, Any]:
    return {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "raw_path": b""}
