"""A member's two processes without vLLM: this agent speaks the contract, fake_launcher pretends an engine.

    python -m tests.support.fake_agent --member FILE
    python -m tests.support.fake_launcher --member FILE

Both meet in files of the member's memory folder, as the real ones meet on the control page: `boot` (the launcher counts
its starts), `grant` and `kill` (the agent writes a boot), `engine` (the launcher writes the engine's pid). What the
agent does wrong is read from `script.json` in the member's home at every call: {"fails": {"sleep": ["DRAIN_DEADLINE"]},
"freesNothing": true, "delay": {"sleep": 0.5}, "diesIn": ["wake-kv"]}.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.manifest import MANIFEST
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import KV, Level, Phase, Weights
from ebbtide_api.verbs import EPOCH, IDEMPOTENCY_KEY, INSTANCE, Operation, OperationStatus, Verb

from tests.support.fake_launcher import TICK, number, put
from tests.support.fake_member import FakeMember, Script, error


def alive(pid: int) -> int:
    """Return a pid, or 0 when there is no such process."""
    return pid if pid and Path(f"/proc/{pid}").exists() else 0


def refuses(path: str, version: int) -> ErrorBody | None:
    """Say why a published version is refused: the only thing that is read of it is its manifest's version."""
    try:
        manifest = json.loads((Path(path) / MANIFEST).read_text())
    except OSError:
        return error(ErrorCode.MANIFEST_INVALID, f"{path} cannot be read", reason="UNREADABLE")
    except ValueError:
        return error(ErrorCode.MANIFEST_INVALID, "the manifest is torn", reason="TORN")
    if manifest.get("version") != version:
        return error(ErrorCode.MANIFEST_INVALID, "another version", reason="VERSION_MISMATCH")
    return None


class FakeAgent:
    """A member behind HTTP. Operations take `delay` seconds; what the contract remembers is in state.json."""

    def __init__(
        self, member: FakeMember, *, home: Path | None = None, memory: Path | None = None, token: str = ""
    ) -> None:
        self.member, self.home, self.memory, self.token = member, home, memory, token
        self.delays: dict[str, float] = {}
        self.changed = asyncio.Event()
        self.requests: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # what the launcher and the disk say

    def remember(self) -> None:
        if self.home is not None:
            kept = {"epoch": self.member.epoch, "version": self.member.version, "cycle": self.member.cycle}
            (self.home / "state.json").write_text(json.dumps(kept))
        if self.memory is not None:
            # What a real engine would say of itself to a restarted agent.
            member = self.member
            held = {"weights": member.weights, "kv": member.kv, "level": member.level, "pending": member.pending}
            (self.memory / "residency").write_text(json.dumps({**held, "boot": member.boot, "phase": member.phase}))

    def recall(self) -> None:
        if self.home is not None and (self.home / "state.json").exists():
            kept = json.loads((self.home / "state.json").read_text())
            self.member.epoch, self.member.version = kept["epoch"], kept["version"]
            self.member.cycle = kept["cycle"]

    def read_script(self) -> None:
        path = self.home / "script.json" if self.home else None
        if path is None or not path.exists():
            return
        told = json.loads(path.read_text())
        path.unlink()
        self.delays = told.get("delay", {})
        self.member.script = Script(
            fails={verb: [ErrorCode(code) for code in codes] for verb, codes in told.get("fails", {}).items()},
            frees_nothing=told.get("freesNothing", False),
            dies_in=set(told.get("diesIn", [])),
        )

    async def follow_launcher(self) -> None:
        """Take over what the launcher says: a new boot, or an engine that is gone."""
        assert self.memory is not None
        while True:
            self.look(self.memory)
            await asyncio.sleep(TICK)

    def look(self, memory: Path) -> None:
        boot, engine = number(memory / "boot"), alive(number(memory / "engine"))
        member = self.member
        if boot and boot != member.boot:
            member.boot = boot - 1
            member.relaunch()
            self.ring()
        elif member.engine_pid and engine != member.engine_pid:
            member.kill_engine()
            self.ring()
        if engine and engine != member.engine_pid:
            member.engine_pid = engine
            self.ring()
        if member.phase is Phase.RECOVERING:
            put(memory / "kill", member.boot)

    # the interface

    def ring(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http":
            return
        data = b""
        while True:
            message = await receive()
            data += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self.requests.append(f"{scope['method']} {scope['path']}")
        try:
            status, body = await self._answer(scope, headers, data)
        except EbbtideError as refusal:
            status, body = refusal.status, refusal.body().wire()
        content = json.dumps(body).encode()
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": content})

    async def _answer(self, scope: dict[str, Any], headers: dict[str, str], data: bytes) -> tuple[int, Any]:
        if self.token and headers.get("authorization") != f"Bearer {self.token}":
            raise EbbtideError(ErrorCode.UNAUTHENTICATED, "no token")
        path, query = scope["path"], {key: value[0] for key, value in parse_qs(scope["query_string"].decode()).items()}
        if path == "/v1/state":
            return 200, await self._state(query)
        if path.startswith("/v1/operations/"):
            return 200, await self._operation(path.removeprefix("/v1/operations/"), float(query.get("wait", "0")))
        return await self._verb(Verb(path.removeprefix("/v1/")), headers, json.loads(data or b"{}"))

    async def _state(self, query: dict[str, str]) -> Any:
        if "wait_version" in query:
            await self._until(lambda: self.member.state_version > int(query["wait_version"]), float(query["wait"]))
        return self.member.vector().wire()

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        due = time.monotonic() + seconds
        while not holds() and (left := due - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), left)

    async def _operation(self, key: str, seconds: float) -> Any:
        def find() -> Operation | None:
            return self.member.operations.get(key, (None, None))[1]

        await self._until(lambda: (found := find()) is None or found.status is not OperationStatus.RUNNING, seconds)
        found = find()
        if found is None:
            raise EbbtideError(ErrorCode.NOT_FOUND, "no such operation")
        return found.wire()

    async def _verb(self, verb: Verb, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        self.read_script()
        key, epoch = headers[IDEMPOTENCY_KEY.lower()], int(headers[EPOCH.lower()])
        fresh = key not in self.member.operations
        plain = {name: body[name] for name in body}
        answer = self.member.accept(verb, plain, key, epoch, headers.get(INSTANCE.lower(), ""))
        self.remember()
        if isinstance(answer, ErrorBody):
            raise EbbtideError.of(answer)
        if fresh and answer.status is OperationStatus.RUNNING:
            task = asyncio.create_task(self._finish(verb))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.ring()
        return (202 if answer.status is OperationStatus.RUNNING else 200), answer.wire()

    async def _finish(self, verb: Verb) -> None:
        await asyncio.sleep(self.delays.get(verb, 0.0))
        if verb is Verb.GRANT and self.memory is not None:
            put(self.memory / "grant", self.member.boot)
            await self._engine_starts()
        self.member.complete()
        self.remember()
        self.ring()

    async def _engine_starts(self) -> None:
        await self._until(lambda: bool(self.member.engine_pid), 10.0)


def run_agent(config: MemberConfig) -> None:
    import uvicorn

    member = FakeMember(config.name, config.server, config.group, config.uid, boot=0)
    member.published, member.url = refuses, f"http://{config.host}:{config.data_port}"
    agent = FakeAgent(
        member, home=Path(config.home), memory=Path(config.memory), token=Path(config.token_path).read_text().strip()
    )
    agent.recall()
    reattach(agent)

    async def serve() -> None:
        settings = uvicorn.Config(agent, host=config.host, port=config.agent_port, log_level="warning", lifespan="off")
        follow = asyncio.create_task(agent.follow_launcher())
        await uvicorn.Server(settings).serve()
        follow.cancel()

    asyncio.run(serve())


def reattach(agent: FakeAgent) -> None:
    """Say where the member is, from what the launcher and an earlier agent left: nothing is believed but that."""
    assert agent.memory is not None
    member, memory = agent.member, agent.memory
    member.boot, member.engine_pid = number(memory / "boot"), alive(number(memory / "engine"))
    if not member.engine_pid or number(memory / "grant") != member.boot:
        return
    held = json.loads((memory / "residency").read_text())
    member.weights, member.kv, member.pending = Weights(held["weights"]), KV(held["kv"]), held["pending"]
    member.level = Level(held["level"]) if held["level"] else None
    member.phase = Phase.RUNNING if held["phase"] == Phase.RUNNING else Phase.UNKNOWN
    member.rederive()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--member", type=Path, required=True)
    asked = parser.parse_args()
    config = MemberConfig.model_validate_json(asked.member.read_bytes())
    run_agent(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
