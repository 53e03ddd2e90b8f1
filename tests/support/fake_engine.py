"""A scripted fake of the engine and its launcher, on a real page, a real port and real processes.

The engine half speaks the control routes and a gated completion route. The launcher half serves the page: it waits for
the grant, starts and ends a process that stands for vLLM, measures, and comes back by a new launch as its driver would
bring it. Memory is pretended: BASE, and WEIGHTS and KV on top of it while they are mapped, in bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from enum import Enum
from pathlib import Path
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import KV, Weights
from ebbtide_api.verbs import SECRET
from ebbtide_runtime.measure import folder
from ebbtide_runtime.native import Field, Gate, Measurement, Page, process_start

from tests.support.fake_ranks import BASE, Fleet
from tests.support.small_http import Answer, BrokenError, Request, SmallServer, break_all

_PREFIX = "/ebbtide/v1/"
_TICK_S = 0.003
_NULL = subprocess.DEVNULL


class Lie(Enum):
    """What goes wrong in one call of a control route."""

    NOTHING = "answers 200 and does nothing"
    ERROR = "answers 500 and does nothing"
    NO_ROOM = "answers 507 and does nothing"
    RESET = "breaks the connection and does nothing"
    LATE = "does it, and breaks the connection"
    HANG = "never answers"
    DIES = "the process dies instead"
    PARTIAL = "only rank 0 does it"
    REPLACED = "does it, and is another process"
    DIES_AFTER = "does it, answers, and dies"


class FakeEngine:
    """One launch after another. Methods are for the test's thread; all else runs in a thread of its own."""

    def __init__(self, config: MemberConfig, secret: str, page: Page, *, respawn: bool = True) -> None:
        self.config = config
        self.page = page
        self.fleet = Fleet(config.tensor_parallel * config.pipeline_parallel)
        self.leak = 0
        self.measures = True
        self.respawn = respawn
        self.ready_after = 0.0
        self.canary: list[int] | None = None
        self.token_s = 0.002
        self.paused = False
        self.calls: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._secret = secret
        self._lies: dict[str, list[Lie]] = {}
        self._frozen = False
        self._aborted = 0
        self._gate: Gate | None = None
        self._measured = (-1, 0)
        self._loop = asyncio.new_event_loop()
        self._server = SmallServer(config.data_port, self._handle)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fake engine", daemon=True)
        self._thread.start()
        self._launcher = self._submit(self._launch_forever())
        until(lambda: page.get(Field.BOOT) > 0)

    # For tests

    def lie(self, verb: str, *lies: Lie) -> None:
        """Script the next calls of a control route."""
        self._lies.setdefault(verb, []).extend(lies)

    def die(self) -> None:
        """End the engine's process, as a crash does."""
        process = self.process
        if process is not None:
            process.kill()

    def end_requests(self) -> None:
        """End the requests in flight, as if they were aborted."""
        self._aborted += 1

    def replace(self) -> None:
        """Let another process stand for the engine, without a word."""
        old, _ = self.process, self._spawn()
        assert old is not None
        old.kill()
        old.wait()

    @property
    def used(self) -> int:
        """Device bytes in use."""
        return (self.fleet.bytes + self.leak) if self.process is not None else 0

    def close(self) -> None:
        """End everything."""
        self._launcher.cancel()
        self._submit(self._end(0)).result(20)
        self._submit(break_all()).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _submit(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    # The launcher

    async def _launch_forever(self) -> None:
        while True:
            await self._launch()
            await _poll(lambda: self.respawn)

    async def _launch(self) -> None:
        boot = self.page.add(Field.BOOT, 1)
        while self.page.get(Field.GRANT) != boot:
            self._measure()
            if self.page.get(Field.KILL) == boot:
                return
            await asyncio.sleep(_TICK_S)
        self._start()
        started = time.monotonic()
        listening = False
        while self.page.get(Field.KILL) != boot and self.process is not None and self.process.poll() is None:
            if not listening and time.monotonic() >= started + self.ready_after:
                await self._server.start()
                listening = True
            self._measure()
            await asyncio.sleep(_TICK_S)
        await self._end(70 if self.page.get(Field.KILL) == boot else 71)

    def _start(self) -> None:
        self.fleet = Fleet(len(self.fleet.ranks))
        self.paused = self._frozen = False
        self._gate = self.page.register_gate()
        self.page.set(Field.BASELINE, BASE)
        self._spawn()

    def _spawn(self) -> None:
        self.process = subprocess.Popen(
            ["sleep", "300"], start_new_session=True, stdin=_NULL, stdout=_NULL, stderr=_NULL
        )
        self.page.set(Field.ENGINE_START, process_start(self.process.pid) or 0)
        self.page.set(Field.ENGINE_PID, self.process.pid)

    async def _end(self, status: int) -> None:
        await self._server.stop()
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._close_gate()
        self._measure()
        self.page.add(Field.ENGINE_EXITS, 1)
        self.page.set(Field.LAST_EXIT, status)
        self.page.set(Field.ENGINE_START, 0)
        self.page.set(Field.ENGINE_PID, 0)

    def _close_gate(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()

    def _measure(self) -> None:
        request = self.page.get(Field.MEASURE_REQUEST)
        now = (request, self.used)
        if not self.measures or now == self._measured:
            return
        host = self.fleet.parked_bytes + folder(self.config.weights_dir, self.config.received_dir)
        processes = 0 if self.process is None else 1
        self.page.publish(Measurement(request, time.monotonic_ns(), self.used, host, processes))
        self._measured = now

    # The engine

    async def _handle(self, request: Request) -> Answer:
        if request.path == "/v1/completions":
            return await self._complete(request)
        if request.headers.get(SECRET.lower()) != self._secret:
            return _refused(ErrorCode.UNAUTHENTICATED)
        verb = request.path.removeprefix(_PREFIX)
        self.calls.append(verb)
        try:
            return await self._lied(verb, request.body)
        except EbbtideError as error:
            return Answer(error.status, error.body().wire())

    async def _lied(self, verb: str, body: dict[str, Any]) -> Answer:
        queue = self._lies.get(verb)
        lie = queue.pop(0) if queue else None
        match lie:
            case Lie.ERROR:
                return _refused(ErrorCode.ENGINE_FAULTED)
            case Lie.NO_ROOM:
                return _refused(ErrorCode.HOST_MEMORY_INSUFFICIENT)
            case Lie.RESET:
                raise BrokenError
            case Lie.HANG:
                await asyncio.sleep(3600)
            case Lie.DIES:
                self.die()
                await asyncio.sleep(3600)
            case Lie.NOTHING:
                return self._state()
        await self._do(verb, body, only_first=lie is Lie.PARTIAL)
        return self._afterwards(lie)

    def _afterwards(self, lie: Lie | None) -> Answer:
        match lie:
            case Lie.LATE:
                raise BrokenError
            case Lie.REPLACED:
                self.replace()
            case Lie.DIES_AFTER:
                self._loop.call_later(0.002, self.die)
        return self._state()

    async def _do(self, verb: str, body: dict[str, Any], *, only_first: bool) -> None:
        fleet = self.fleet
        match verb:
            case "pause":
                await self._pause(body["mode"])
            case "resume":
                fleet.require_whole()
                self.paused = self._frozen = False
            case "sleep":
                fleet.sleep(body["level"], only_first)
            case "wake":
                fleet.wake(body["tag"], only_first)
                # The last tag that wakes resumes the scheduling by itself.
                self.paused = self.paused and not fleet.whole
            case "reload":
                fleet.reload(Path(body["path"]), body["version"], only_first)
            case "commit":
                fleet.commit(body["version"], only_first)
            case "park":
                fleet.park()

    async def _pause(self, mode: str) -> None:
        self.paused = True
        if mode == "keep":
            self._frozen = True
            return
        self._frozen = self._frozen and mode != "abort"
        if mode == "abort":
            self._aborted += 1
        if mode == "wait":
            await _poll(lambda: self.page.inflight() == 0)

    def _state(self) -> Answer:
        ranks = [rank.state().wire() for rank in self.fleet.ranks]
        version = min(rank.version for rank in self.fleet.ranks)
        body = {"ranks": ranks, "paused": self.paused, "weightVersion": version, "kvBlocks": 64}
        return Answer(200, {**body, "unfinished": self.page.inflight()})

    # Requests

    async def _complete(self, request: Request) -> Answer:
        if request.headers.get(SECRET.lower()) == self._secret:
            self.calls.append("canary")
            return await self._canary(request)
        gate = self._gate
        if gate is None or not gate.enter():
            return Answer(
                503, EbbtideError(ErrorCode.DRAINING, "closed").body().wire(), headers=(("Retry-After", "1"),)
            )
        return Answer(200, chunks=self._stream(gate, request.body["max_tokens"]))

    async def _canary(self, request: Request) -> Answer:
        queue = self._lies.get("canary")
        if queue:
            return await self._lied("canary", request.body)
        if self.paused or not self.fleet.whole:
            await asyncio.sleep(3600)
        tokens = self.canary or self.fleet.tokens(request.body["prompt"], request.body["max_tokens"])
        return Answer(200, {"choices": [{"text": " ".join(map(str, tokens)), "token_ids": tokens}]})

    async def _stream(self, gate: Gate, count: int) -> AsyncIterator[str]:
        aborted = self._aborted
        reason = "length"
        try:
            for number in range(count):
                await _poll(lambda: not self._frozen)
                if self._aborted != aborted:
                    reason = "abort"
                    break
                yield f"token {number}\n"
                await asyncio.sleep(self.token_s)
            yield f"end {reason}\n"
        finally:
            with contextlib.suppress(Exception):  # the gate went with its process
                gate.leave()


def _refused(code: ErrorCode) -> Answer:
    error = EbbtideError(code, "scripted", needMiB=200.0, availableMiB=0.0)
    return Answer(error.status, error.body().wire())


async def _poll(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is polled is in shared memory
        await asyncio.sleep(_TICK_S)


def until(condition: Callable[[], bool], seconds: float = 20.0, what: str = "") -> None:
    """Poll until a condition holds; fail after a deadline."""
    due = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < due, f"not within {seconds} s: {what or condition}"
        time.sleep(0.003)


__all__ = ["KV", "FakeEngine", "Lie", "Weights", "until"]
