"""Watches the control page all the time, and the engine while nothing runs."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import EngineState, Phase

from ..native import Field
from .engine_client import Failure
from .executor import Executor
from .lifecycle import Event, contradicts
from .member import FaultError, Member
from .probe import Identity
from .steps.start import adopt, bring_up
from .vector import Board

log = logging.getLogger("ebbtide.agent")

# Phases in which there is an engine that should answer.
_ANSWERING = frozenset(Phase) - {Phase.UNKNOWN, Phase.PENDING_DEVICE, Phase.FAULTED, Phase.RECOVERING}


class Observer:
    """The loop. One question to the engine is open at most, and it is never given up."""

    def __init__(self, member: Member, executor: Executor, board: Board) -> None:
        self._member = member
        self._executor = executor
        self._board = board
        self._question: asyncio.Task[None] | None = None
        self._adoption: asyncio.Task[None] | None = None
        self._asked_at = 0.0
        self._heard_at = time.monotonic()
        self.beat = time.monotonic()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            self.tick()
            await asyncio.sleep(self._member.settings.tick_s)

    async def close(self) -> None:
        """End what is open."""
        tasks = [task for task in (self._question, self._adoption) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def tick(self) -> None:
        """Look once."""
        self.beat = time.monotonic()
        self._member.page.set(Field.AGENT_BEAT, time.monotonic_ns())
        self._watch_launch()
        if self._member.phase is Phase.UNKNOWN:
            self._adopt()
        elif self._member.phase in _ANSWERING:
            self._watch_engine()
        self._board.refresh()

    # The page

    def _watch_launch(self) -> None:
        member = self._member
        now, known = Identity.of(member.page), member.identity
        if now.boot != known.boot:
            # After `Unknown`, nothing is known of the launch before: it is adopted as it is.
            if member.phase is Phase.UNKNOWN:
                member.identity = now
            else:
                member.booted(now)
        elif member.phase in _ANSWERING:
            self._watch_process(now, known)

    def _watch_process(self, now: Identity, known: Identity) -> None:
        member = self._member
        started = member.started(now)
        if member.page.get(Field.ENGINE_EXITS) != member.exits:
            self._died(f"the engine ended; its launcher says {member.page.get(Field.LAST_EXIT)}")
        elif started and not now.alive:
            self._died(f"the engine, process {now.pid}, died")
        elif not started and member.phase is not Phase.STARTING:
            self._died("the engine is gone")
        elif started and now != known:
            self._replaced(now, known)

    def _replaced(self, now: Identity, known: Identity) -> None:
        member = self._member
        if member.phase is Phase.STARTING or known.pid == 0:
            member.identity = now
            return
        sentence = f"process {known.pid} is now process {now.pid}"
        member.fault(EbbtideError(ErrorCode.INSTANCE_REPLACED, sentence, old=known.pid, new=now.pid))

    def _died(self, sentence: str) -> None:
        member = self._member
        member.exits = member.page.get(Field.ENGINE_EXITS)
        last = member.page.get(Field.LAST_EXIT)
        member.fault(EbbtideError(ErrorCode.ENGINE_FAULTED, sentence, lastExit=last), Event.ENGINE_DIED)

    # Unknown

    def _adopt(self) -> None:
        if self._adoption is None or self._adoption.done():
            self._adoption = asyncio.create_task(adopt(self._member), name="adopt")
            self._adoption.add_done_callback(self._adopted)
            self._heard_at = time.monotonic()

    def _adopted(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("could not derive the phase: %s", error, exc_info=error)
        self._heard_at = time.monotonic()

    # The engine

    def _watch_engine(self) -> None:
        now = time.monotonic()
        if not self._executor.idle:
            self._heard_at = now
            return
        if self._question is not None and not self._question.done():
            self._check_silence(now - max(self._heard_at, self._asked_at))
        elif now - self._asked_at >= self._interval() and self._member.started(Identity.of(self._member.page)):
            self._asked_at = now
            self._question = asyncio.create_task(self._ask(), name="observe")

    def _interval(self) -> float:
        """Return the time between two questions: short only while an answer may bring something new."""
        member, settings = self._member, self._member.settings
        ranks = member.observed.ranks if member.observed else []
        moving = member.phase is Phase.STARTING or any(rank.parking for rank in ranks)
        return settings.observe_s if moving else settings.rest_observe_s

    def _check_silence(self, silence: float) -> None:
        if self._member.phase is not Phase.STARTING and silence > self._member.settings.silence_s:
            sentence = f"the engine has not answered for {silence:.1f} s"
            self._member.fault(EbbtideError(ErrorCode.ENGINE_FAULTED, sentence))

    async def _ask(self) -> None:
        moves = self._executor.moves
        answer = await self._member.engine.state()
        if self._executor.moves == moves and self._executor.idle and self._member.phase in _ANSWERING:
            await self._heard(answer)

    async def _heard(self, answer: EngineState | Failure) -> None:
        member = self._member
        if not isinstance(answer, EngineState):
            self._check_silence(time.monotonic() - self._heard_at)
            return
        self._heard_at = time.monotonic()
        try:
            member.see(answer)
        except FaultError as fault:
            member.fault(fault.error)
            return
        if member.phase is Phase.STARTING:
            name = f"start-{member.identity.boot}-{self._executor.moves}"
            await self._executor.start(name, "start", partial(bring_up, member))
        elif (why := contradicts(member.phase, member.ranks, member.store.memory.committed.version)) is not None:
            sentence = f"the engine is not as it was left in {member.phase}: {why}"
            member.fault(EbbtideError(ErrorCode.ENGINE_FAULTED, sentence))
