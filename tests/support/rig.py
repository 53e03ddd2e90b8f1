"""One member under test: a page, an engine and its agents, with callers that hold an epoch; and the ways it can go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import Phase, StateVector
from ebbtide_api.verbs import Operation, Verb
from ebbtide_runtime.agent.settings import Settings
from ebbtide_runtime.native import Page

from tests.support.agents import FAST, NO_ROOTS, Caller, ProcessAgent, Running, ThreadAgent
from tests.support.checkpoints import Spoil, publish
from tests.support.fake_engine import FakeEngine, until

SLEEP = {"settle": 0.005}


@dataclass
class Member:
    """Everything of one member, and the ways into each phase at rest."""

    root: Path
    config: MemberConfig
    page: Page
    engine: FakeEngine
    agents: list[Running] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)

    def start(self, settings: Settings = FAST, *, process: bool = False) -> Caller:
        agent = ProcessAgent(self.config, settings) if process else ThreadAgent(self.config, settings)
        self.agents.append(agent)
        caller = self.caller()
        caller.up()
        return caller

    def caller(self, epoch: int = 1) -> Caller:
        caller = Caller(self.config, epoch)
        self.callers.append(caller)
        return caller

    @property
    def agent(self) -> Running:
        return self.agents[-1]

    def kill(self) -> None:
        self.agents.pop().kill()

    def publish(self, version: int, spoil: Spoil | None = None) -> dict[str, Any]:
        """Publish a version and return the body that begins its update."""
        path = publish(self.root / "handoff", version, spoil=spoil)
        return {"version": version, "source": {"path": str(path)}}

    def close(self) -> None:
        for caller in self.callers:
            caller.close()
        while self.agents:
            self.agents.pop().stop()
        self.engine.close()
        self.page.close()


def to_running(caller: Caller) -> StateVector:
    vector = caller.until(Phase.PENDING_DEVICE)
    caller.do(Verb.GRANT, {"boot": vector.boot})
    return caller.until(Phase.RUNNING)


def sleep(caller: Caller, **body: Any) -> Operation:
    return caller.do(Verb.SLEEP, {**SLEEP, **body})


def to_asleep(caller: Caller, level: int = 0) -> None:
    sleep(caller, level=level)


def to_weights(caller: Caller, level: int = 0) -> None:
    to_asleep(caller, level)
    caller.do(Verb.WAKE_WEIGHTS)


def to_updating(member: Member, caller: Caller, version: int = 1) -> None:
    to_weights(caller)
    caller.do(Verb.BEGIN_UPDATE, member.publish(version))


def to_committed(member: Member, caller: Caller, version: int = 1) -> None:
    to_updating(member, caller, version)
    caller.do(Verb.COMMIT_UPDATE, {"version": version})


def back(caller: Caller) -> None:
    """From resident weights to serving."""
    caller.do(Verb.WAKE_KV)
    caller.do(Verb.RESUME)


def cycle(member: Member, caller: Caller, version: int) -> None:
    """From serving to serving with new weights."""
    to_committed(member, caller, version)
    back(caller)


# How to come from Running to rest in each phase, by verbs alone.
WAYS: dict[Phase, Callable[[Member, Caller], None]] = {
    Phase.RUNNING: lambda member, caller: None,
    Phase.PAUSED: lambda member, caller: _done(caller.do(Verb.PAUSE)),
    Phase.ASLEEP: lambda member, caller: to_asleep(caller),
    Phase.WEIGHTS_RESIDENT: lambda member, caller: to_weights(caller),
    Phase.UPDATING: lambda member, caller: to_updating(member, caller),
    Phase.COMMITTED: lambda member, caller: to_committed(member, caller),
    Phase.VERIFYING: lambda member, caller: (to_weights(caller), _done(caller.do(Verb.WAKE_KV)))[1],
}


def _done(_operation: Operation) -> None:
    return None


class Stream:
    """A streamed completion through the gate, read by a thread of its own."""

    def __init__(self, member: Member, tokens: int) -> None:
        self.lines: list[str] = []
        self.status = 0
        self._url = f"http://127.0.0.1:{member.config.data_port}/v1/completions"
        self._tokens = tokens
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until(lambda: bool(self.status), what="the stream begins")

    def _read(self) -> None:
        try:
            with (
                httpx2.Client(timeout=30, trust_env=False, verify=NO_ROOTS) as http,
                http.stream("POST", self._url, json={"max_tokens": self._tokens, "prompt": "x"}) as answer,
            ):
                self.status = answer.status_code
                for line in answer.iter_lines():
                    self.lines.append(line)
        except httpx2.HTTPError:
            self.status = self.status or -1

    def end(self, seconds: float = 30.0) -> str:
        """Wait for the last line and return it."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the stream hangs"
        return self.lines[-1] if self.lines else ""
