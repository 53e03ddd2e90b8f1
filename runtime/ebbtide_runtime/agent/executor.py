"""Runs operations: one at a time, each id once, with its answer remembered across a restart of the agent.

submit(call) -> Operation    accepted, running, done, or the same call's earlier answer
             -> raises       EbbtideError: refused; nothing was touched and nothing is remembered of it
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ebbtide_api.base import Message, Reading
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase, PhaseTiming
from ebbtide_api.verbs import Operation, OperationStatus, Verb

from .action import Action, Running, refused
from .lifecycle import TRANSIENT, Event, Noop, Refuse, Start, allowed, decide, goal_reached, weights_refusal
from .member import FaultError, Member
from .metrics import Metrics
from .store import Recorded

log = logging.getLogger("ebbtide.agent")


@dataclass(frozen=True)
class Call:
    """One mutating call: its headers, and its parsed body. `deadline` is in seconds."""

    verb: Verb
    key: str
    epoch: int
    body: Message
    instance: str | None = None
    deadline: float | None = None
    leader: int = 0

    @property
    def digest(self) -> str:
        """A digest of what is asked: calls with one id must have one digest."""
        text = json.dumps([self.verb.value, self.body.wire()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class _Slot:
    """The operation that holds the member, from before its checks until its answer is remembered."""

    running: Running
    digest: str
    body: dict[str, Any]
    accepted: asyncio.Future[Operation]
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    reason: EbbtideError | None = None
    ending: bool = False
    note: dict[str, int] = field(default_factory=dict)


class Executor:
    """One member's operations."""

    def __init__(self, member: Member, actions: Callable[[Verb], type[Action[Any]]], metrics: Metrics) -> None:
        self._member = member
        self._actions = actions
        self._metrics = metrics
        self._slot: _Slot | None = None
        self.moves = 0
        """How many operations began: what was observed across a change of this is old."""
        member.interrupt = self.interrupt
        member.entered = self._entered

    # What runs

    @property
    def idle(self) -> bool:
        """Whether no operation holds the member."""
        return self._slot is None

    @property
    def current(self) -> str | None:
        """The id of the operation that holds the member."""
        return self._slot.running.id if self._slot else None

    def find(self, key: str) -> Operation | None:
        """Return an operation by its id, if it is among those remembered."""
        if self._slot is not None and self._slot.running.id == key:
            return self._operation(self._slot)
        record = self._member.store.find(key)
        return record.operation if record else None

    async def wait(self, key: str, seconds: float) -> Operation | None:
        """Return an operation once it has ended, or as it is after `seconds`."""
        slot = self._slot
        if slot is not None and slot.running.id == key:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(slot.done.wait(), seconds)
        return self.find(key)

    def interrupt(self, reason: EbbtideError) -> None:
        """End the running operation, which then answers with `reason`."""
        slot = self._slot
        if slot is not None and slot.task is not None and slot.reason is None and not slot.ending:
            slot.reason = reason
            if slot.task is not asyncio.current_task():
                slot.task.cancel()

    async def close(self) -> None:
        """End without an answer: the next agent finds what was running, and says so."""
        slot = self._slot
        if slot is not None and slot.task is not None:
            slot.task.cancel()
            await asyncio.gather(slot.task, return_exceptions=True)

    # Acceptance

    async def submit(self, call: Call) -> Operation:
        """Accept a call, or return what the same call was answered. Raises EbbtideError when it is refused."""
        await self.fence(call.epoch, call.leader)
        same = await self._same(call)
        if same is not None:
            return same
        self._check_instance(call.instance)
        if self._slot is not None:
            raise _busy(self._slot.running)
        slot = self._hold(self._take(call))
        try:
            operation = await self._accept(call, slot)
        except BaseException as error:
            self._slot = None
            self._refused(slot, error)
            raise
        slot.accepted.set_result(operation)
        return operation

    async def follow(self, leader: int) -> None:
        """Keep the highest epoch of an operator seen. Raises STALE_EPOCH for a lower one: it leads no more."""
        store = self._member.store
        if leader > store.memory.leader:
            # Durable before anything is done in its name, as below.
            await store.save(leader=leader)
            self._member.changed()
        if leader < store.memory.leader:
            sentence = f"the operator of epoch {leader} leads no more; that of {store.memory.leader} does"
            raise EbbtideError(ErrorCode.STALE_EPOCH, sentence, leader=leader, current=store.memory.leader)

    async def fence(self, epoch: int, leader: int) -> None:
        """Keep the highest epoch of a lease seen. Raises STALE_EPOCH for a lower one, and what `follow` raises."""
        await self.follow(leader)
        store = self._member.store
        if epoch > store.memory.epoch:
            # Durable before anything is done in its name: a restarted agent must still refuse the holder before.
            await store.save(epoch=epoch)
            self._member.publish_epoch()
        if epoch < store.memory.epoch:
            sentence = f"epoch {epoch} is over; the group is at {store.memory.epoch}"
            raise EbbtideError(ErrorCode.STALE_EPOCH, sentence, epoch=epoch, current=store.memory.epoch)

    async def _same(self, call: Call) -> Operation | None:
        slot = self._slot
        if slot is not None and slot.running.id == call.key:
            _check_digest(call, slot.digest)
            return await asyncio.shield(slot.accepted)
        record = self._member.store.find(call.key)
        if record is None:
            return None
        _check_digest(call, record.digest)
        return record.operation

    def _check_instance(self, believed: str | None) -> None:
        now = self._member.instance_name()
        if believed is not None and believed != now:
            raise EbbtideError(ErrorCode.INSTANCE_REPLACED, f"{believed} is gone", old=believed, new=now)

    def _take(self, call: Call) -> _Slot:
        running = Running(call.key, call.verb.value, self._member.config.name, call.deadline)
        future: asyncio.Future[Operation] = asyncio.get_running_loop().create_future()
        return _Slot(running, call.digest, call.body.wire(), future)

    def _hold(self, slot: _Slot) -> _Slot:
        self.moves += 1
        self._slot = slot
        return slot

    def _refused(self, slot: _Slot, error: BaseException) -> None:
        slot.accepted.set_exception(error if isinstance(error, Exception) else _closing())
        slot.accepted.exception()  # nobody may be waiting for it

    async def _accept(self, call: Call, slot: _Slot) -> Operation:
        member = self._member
        action = self._actions(call.verb)(member, call.body)
        decision = self._decide(call)
        if isinstance(decision, Noop):
            return await self._noop(action, slot)
        before = member.phase
        await self._prepare(action, slot)
        if member.phase is not before:
            raise EbbtideError(
                ErrorCode.INSTANCE_REPLACED, f"the member went from {before} to {member.phase} meanwhile"
            )
        slot.note = action.note()
        await member.store.save(current=self._record(slot, self._operation(slot)))
        slot.running.entered(decision.phase)
        member.begin(decision.phase, action.budget())
        slot.task = asyncio.create_task(self._run(slot, action.run), name=f"operation {call.key}")
        await asyncio.sleep(0)
        return self._operation(slot)

    async def _prepare(self, action: Action[Any], slot: _Slot) -> None:
        error = EbbtideError(ErrorCode.ENGINE_FAULTED, "the engine does not say what state it is in")
        slot.task = asyncio.create_task(action.prepare(), name=f"check {slot.running.id}")
        try:
            with self._member.stage(self._member.settings.silence_s, error, fatal=True):
                await slot.task
        except asyncio.CancelledError:
            raise (slot.reason or _closing()) from None
        except FaultError as fault:
            self._member.fault(fault.error)
            raise fault.error from fault
        finally:
            slot.task = None

    def _decide(self, call: Call) -> Start | Noop:
        member = self._member
        version = getattr(call.body, "version", None)
        refusal = weights_refusal(call.verb, member.phase, member.ranks.weights)
        if refusal is not None:
            raise refused(refusal)
        if version is not None and goal_reached(call.verb, version, member.facts()):
            return Noop()
        decision = decide(member.phase, Event(call.verb.value))
        if isinstance(decision, Refuse):
            raise _refusal(decision.code, call.verb, member.phase)
        assert isinstance(decision, Start | Noop)  # noqa: S101 - the table's test proves it for every verb
        return decision

    async def _noop(self, action: Action[Any], slot: _Slot) -> Operation:
        result = await action.already()
        slot.running.noop = True
        operation = self._ended(slot, result, None)
        await self._member.store.finish(self._record(slot, operation))
        slot.done.set()
        self._slot = None
        return operation

    # Running

    async def start(self, name: str, verb: str, work: Callable[[Running], Awaitable[Reading | None]]) -> None:
        """Run work of the agent's own as an operation, if nothing else runs."""
        if self._slot is not None:
            return
        future: asyncio.Future[Operation] = asyncio.get_running_loop().create_future()
        slot = self._hold(_Slot(Running(name, verb, self._member.config.name, None), "", {}, future))
        future.set_result(self._operation(slot))
        slot.running.entered(self._member.phase)
        slot.task = asyncio.create_task(self._run(slot, work), name=f"operation {name}")

    async def _run(self, slot: _Slot, work: Callable[[Running], Awaitable[Reading | None]]) -> None:
        result, error = await self._outcome(slot, work)
        slot.ending = True
        if error is not None and self._member.phase in TRANSIENT:
            # No operation leaves a member in a phase that nobody would end.
            self._member.fault(error)
        if error is not None:
            self._member.last_error = error.body()
        elif slot.running.verb == Verb.SLEEP:
            # Memory was measured free since: what went wrong before would contradict it. Until then it is worth
            # telling, also once the engine was started again.
            self._member.last_error = None
        operation = self._ended(slot, result, error)
        await self._member.store.finish(self._record(slot, operation))
        slot.done.set()
        self._slot = None
        self._member.changed()

    async def _outcome(
        self, slot: _Slot, work: Callable[[Running], Awaitable[Reading | None]]
    ) -> tuple[Reading | None, EbbtideError | None]:
        try:
            result = await work(slot.running)
        except FaultError as fault:
            self._member.fault(fault.error)
            return None, slot.reason or fault.error
        except EbbtideError as error:
            return None, slot.reason or error
        except asyncio.CancelledError:
            if slot.reason is None:
                raise
            return None, slot.reason
        except Exception as error:
            log.exception("operation %s", slot.running.id)
            return None, EbbtideError(ErrorCode.INTERNAL, f"{type(error).__name__} in {slot.running.verb}")
        return (None, slot.reason) if slot.reason else (result, None)

    def _entered(self, phase: Phase) -> None:
        if self._slot is not None and self._slot.task is not None:
            self._slot.running.entered(phase)

    # Answers

    def _ended(self, slot: _Slot, result: Reading | None, error: EbbtideError | None) -> Operation:
        # The slot's own record goes on saying Running: an answer counts once it is remembered and the member is free.
        slot.running.left()
        changes: dict[str, Any] = {
            "status": OperationStatus.FAILED if error is not None else OperationStatus.DONE,
            "result": result.wire() if result is not None else None,
            "error": error.body() if error is not None else None,
            "ended_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        operation = self._operation(slot).model_copy(update=changes)
        self._metrics.ended(operation, time.monotonic() - slot.running.started)
        return operation

    def _operation(self, slot: _Slot) -> Operation:
        running = slot.running
        return Operation(
            id=running.id,
            verb=running.verb,
            target=running.target,
            status=OperationStatus.RUNNING,
            noop=running.noop,
            phase=self._member.phase,
            progress=running.progress,
            phases=[PhaseTiming(phase=phase, ms=round(ms, 3)) for phase, ms in running.timings()],
            started_at=running.started_at,
        )

    def _record(self, slot: _Slot, operation: Operation) -> Recorded:
        return Recorded(digest=slot.digest, body=slot.body, note=slot.note, operation=operation)


def _check_digest(call: Call, digest: str) -> None:
    if call.digest != digest:
        raise EbbtideError(ErrorCode.OPERATION_MISMATCH, f"the id {call.key!r} was used for another call", id=call.key)


def _busy(running: Running) -> EbbtideError:
    sentence = f"{running.verb} is running as {running.id}"
    return EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, sentence, operation=running.id, verb=running.verb)


def _refusal(code: ErrorCode, verb: Verb, phase: Phase) -> EbbtideError:
    can = [event.value for event in allowed(phase)]
    return EbbtideError(code, f"{verb} is not for a member in {phase}", verb=verb.value, phase=phase.value, allowed=can)


def _closing() -> EbbtideError:
    return EbbtideError(ErrorCode.UNREACHABLE, "the agent is closing")
