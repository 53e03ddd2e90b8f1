"""Members on disk, and their agents: in a thread of the test, or as the real process; and a client for both."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import httpx2
import uvicorn
from ebbtide_api.errors import EbbtideError, ErrorBody
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import DEADLINE, EPOCH, IDEMPOTENCY_KEY, INSTANCE, Operation, OperationStatus, Verb
from ebbtide_runtime.agent.agent import Agent
from ebbtide_runtime.agent.app import build
from ebbtide_runtime.agent.auth import Bearer
from ebbtide_runtime.agent.settings import Settings

from tests.support.small_http import break_all

TOKEN = "agent-token-0123456789"
SECRET_TEXT = "boot-secret-9876543210"
MIB = 1 << 20
# Reading the machine's root certificates takes a client longer than a test.
NO_ROOTS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

# Intervals that a test need not wait for, and deadlines that a machine under load still keeps. The short ones are those
# that tests meet on purpose.
FAST = Settings(
    tick_s=0.01,
    observe_s=0.02,
    rest_observe_s=0.02,
    silence_s=15.0,
    unknown_s=30.0,
    start_s=60.0,
    drain_abort_s=15.0,
    pause_s=15.0,
    suspend_s=20.0,
    settle_s=0.2,
    settle_poll_s=0.02,
    measure_s=5.0,
    suspended_s=30.0,
    wake_weights_s=20.0,
    wake_kv_s=20.0,
    ingest_s=30.0,
    reload_s=20.0,
    commit_s=20.0,
    canary_s=20.0,
    rest_s=100.0,
    recover_s=20.0,
)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_member(root: Path, model: Path | str = "tiny", **changes: Any) -> MemberConfig:
    """Write a member's folders, secret and token, and return its configuration, which is written too."""
    home, memory = root / "home", root / "memory"
    for folder in (home, memory, root / "handoff"):
        folder.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {
        "name": "chat-0",
        "uid": "uid-0",
        "server": "chat",
        "group": "actor",
        "ordinal": 0,
        "home": str(home),
        "memory": str(memory),
        "handoff": str(root / "handoff"),
        "data_port": free_port(),
        "agent_port": free_port(),
        "model": str(model),
        "served_name": "tiny",
        "device_budget": 1000 * MIB,
    }
    config = MemberConfig(**{**fields, **changes})
    for path, text in ((config.secret_path, SECRET_TEXT), (config.token_path, TOKEN)):
        Path(path).write_text(text + "\n")
    (home / "member.json").write_text(config.model_dump_json(by_alias=True))
    return config


class Running(Protocol):
    """An agent that runs."""

    def kill(self) -> None:
        """End it as SIGKILL does, or as near to it as a thread can."""

    def stop(self) -> None:
        """End it as SIGTERM does."""


class ThreadAgent:
    """An agent in a thread: quick to start, and tests may look inside."""

    def __init__(self, config: MemberConfig, settings: Settings = FAST) -> None:
        self.agent = Agent(config, settings)
        app = build(self.agent, Bearer.from_file(config.token_path))
        options = {"log_config": None, "access_log": False, "lifespan": "on", "timeout_graceful_shutdown": 1}
        self._server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=config.agent_port, **options))
        self._loop = asyncio.new_event_loop()
        self._ends = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        # What uvicorn's own loop does, but for the tenth of a second that it sleeps before it looks whether to end.
        server, config = self._server, self._server.config
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        await self._ends.wait()
        await server.shutdown()
        await break_all()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    kill = stop


class ProcessAgent:
    """The agent as it is started for real. `log` is what it wrote."""

    def __init__(self, config: MemberConfig, settings: Settings = FAST) -> None:
        self.log = Path(config.home) / "agent.log"
        names = {f"EBBTIDE_{name.upper()}": str(value) for name, value in vars(settings).items()}
        command = [sys.executable, "-m", "ebbtide_runtime.agent", "--member", f"{config.home}/member.json"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env={**os.environ, **names, "EBBTIDE_LOG": "DEBUG"}, stdout=log, stderr=log
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(10)


class RefusedError(Exception):
    """A call that was answered with an error."""

    def __init__(self, status: int, body: ErrorBody) -> None:
        super().__init__(f"{status} {body}")
        self.status = status
        self.body = body

    @property
    def code(self) -> str:
        return self.body.code.value


class Caller:
    """A client of one agent that holds an epoch, as the operator does."""

    def __init__(self, config: MemberConfig, epoch: int = 1, token: str = TOKEN) -> None:
        self.epoch = epoch
        self.http = httpx2.Client(
            base_url=f"http://127.0.0.1:{config.agent_port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=30,
            trust_env=False,
            verify=NO_ROOTS,
        )

    def close(self) -> None:
        self.http.close()

    def up(self, seconds: float = 60.0) -> None:
        """Wait until the agent answers."""
        due = time.monotonic() + seconds
        while True:
            try:
                self.http.get("/health")
                return
            except httpx2.TransportError:
                assert time.monotonic() < due, "the agent did not come up"
                time.sleep(0.01)

    def post(
        self,
        verb: Verb | str,
        body: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
        instance: str | None = None,
        deadline: float | None = None,
    ) -> Operation:
        """Call a verb. Raises RefusedError."""
        headers = {IDEMPOTENCY_KEY: key or uuid4().hex, EPOCH: str(self.epoch if epoch is None else epoch)}
        headers |= {INSTANCE: instance} if instance is not None else {}
        headers |= {DEADLINE: str(deadline)} if deadline is not None else {}
        answer = self.http.post(f"/v1/{verb}", json=body or {}, headers=headers)
        if not answer.is_success:
            raise RefusedError(answer.status_code, ErrorBody.model_validate_json(answer.content))
        operation = Operation.model_validate_json(answer.content)
        assert answer.status_code == (202 if operation.status is OperationStatus.RUNNING else 200)
        return operation

    def wait(self, key: str, seconds: float = 25.0) -> Operation:
        """Wait for an operation's end."""
        answer = self.http.get(f"/v1/operations/{key}", params={"wait": f"{seconds}s"})
        assert answer.status_code == 200, answer.text
        operation = Operation.model_validate_json(answer.content)
        assert operation.status is not OperationStatus.RUNNING, operation
        return operation

    def ended(self, verb: Verb | str, body: dict[str, Any] | None = None, **how: Any) -> Operation:
        """Call a verb and wait for its end, however it ends."""
        operation = self.post(verb, body, **how)
        return operation if operation.status is not OperationStatus.RUNNING else self.wait(operation.id)

    def do(self, verb: Verb | str, body: dict[str, Any] | None = None, **how: Any) -> Operation:
        """Call a verb that must succeed."""
        operation = self.ended(verb, body, **how)
        assert operation.status is OperationStatus.DONE, operation
        return operation

    def fail(self, verb: Verb | str, body: dict[str, Any] | None = None, **how: Any) -> ErrorBody:
        """Call a verb that must not succeed, at once or later, and return why."""
        try:
            operation = self.ended(verb, body, **how)
        except RefusedError as refused:
            return refused.body
        assert operation.error is not None, operation
        return operation.error

    def state(self, **query: Any) -> StateVector:
        answer = self.http.get("/v1/state", params=query)
        assert answer.status_code == 200, answer.text
        return StateVector.model_validate_json(answer.content)

    def until(self, *phases: Phase, seconds: float = 30.0) -> StateVector:
        """Wait until the member rests in one of some phases, with no operation running."""
        due = time.monotonic() + seconds
        vector = self.state()
        while vector.phase not in phases or vector.operation is not None:
            assert time.monotonic() < due, f"{vector.phase}, {vector.operation}, {vector.last_error}"
            vector = self.state(wait_version=vector.state_version, wait=0.2)
        return vector


def faster(**changes: float) -> Settings:
    """Return the test's settings with some changed."""
    return replace(FAST, **changes)


def raised(body: ErrorBody) -> EbbtideError:
    """Return an answered error as the exception."""
    return EbbtideError.of(body)
