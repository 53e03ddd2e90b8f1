"""The steps of a server, for those who drive them one by one. All members take a step, and each is reported.

A server that is driven by hand is left alone by plans, until it is handed back: by `reconcile`, by a resume outside
of a lease, by lend or reclaim, or by the end of the lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from ebbtide_api.base import Message, Reading
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.verbs import LeaseStage, Operation, Verb

from .commands import Asked
from .loop import Group, Operator
from .operations import fingerprint
from .plan import Call, GroupRecord, MemberView
from .plan import lease as leases
from .plan.keys import attempt_key, base, instance
from .plan.lending import error_of
from .plan.member import Do, Need
from .plan.memory import shortages

log = logging.getLogger("ebbtide.steps")
NEEDS = {Verb.WAKE_WEIGHTS: Need.WEIGHTS, Verb.WAKE_KV: Need.KV}
STEP_DEADLINE = 900.0


class MemberStep(Reading):
    """One member's part of a step."""

    member: str
    operation: Operation | None = None
    error: ErrorBody | None = None


class StepResult(Reading):
    """A step of a server, member by member."""

    members: list[MemberStep]


async def step(operator: Operator, server: str, verb: Verb, body: Message, asked: Asked) -> Operation:
    """Begin a step of every member of a server. Raises EbbtideError: then nothing was begun."""
    group = operator.groups[operator.servers[server].group]
    digest = fingerprint(verb, server, body)
    trainer = await operator.trainer(group)
    async with group.lock:
        if asked.key and (same := operator.operations.repeated(asked.key, digest)):
            return same
        _require_turn(group.record, asked.epoch)
        members = _members(operator, server)
        if short := shortages(operator.world(group, trainer), _takers(members, verb)):
            raise EbbtideError.of(next(iter(short.values())))
        await _take_in_hand(operator, group, server, verb)
        operation = await operator.operations.begin(asked.key, verb, server, digest)
    _spawn(operator, _run(operator, group, operation, verb, body, members))
    return operation


def _require_turn(record: GroupRecord, epoch: int | None) -> None:
    """Let the holder step, or anybody while nobody holds the lease."""
    if record.lease is None:
        if epoch is not None and epoch != record.epoch:
            raise leases.stale(record, epoch).error()
        return
    if refusal := leases.check_epoch(record, epoch):
        raise refusal.error()
    if record.lease.stage not in {LeaseStage.GRANTED, LeaseStage.LENT}:
        message = f"group {record.group} is {record.lease.stage}: its members are moved already"
        raise EbbtideError(ErrorCode.OPERATION_IN_PROGRESS, message, stage=record.lease.stage.value)


def _members(operator: Operator, server: str) -> list[MemberView]:
    spec = operator.servers[server]
    members = [member for member in operator.driver.members(spec.group) if member.server == server]
    absent = [member.name for member in members if member.state is None]
    if absent or len(members) < spec.spec.replicas:
        message = f"not every member of {server} answers: {', '.join(absent) or 'some are not started'}"
        raise EbbtideError(ErrorCode.UNREACHABLE, message, server=server)
    return members


def _takers(members: list[MemberView], verb: Verb) -> list[tuple[MemberView, Do]]:
    need = NEEDS.get(verb, Need.NOTHING)
    already = {Need.WEIGHTS: "weights", Need.KV: "kv"}.get(need)
    return [
        (member, Do(verb, Message(), need))
        for member in members
        if already and member.state and getattr(member.state, already) != "resident"
    ]


async def _take_in_hand(operator: Operator, group: Group, server: str, verb: Verb) -> None:
    manual = group.record.manual - {server} if verb is Verb.RECONCILE else group.record.manual | {server}
    if manual != group.record.manual:
        await operator.save(group, group.record.model_copy(update={"manual": manual}))


def _spawn(operator: Operator, work: Coroutine[None, None, None]) -> None:
    task = asyncio.create_task(work)
    operator.tasks.add(task)
    task.add_done_callback(operator.tasks.discard)


async def _run(
    operator: Operator, group: Group, operation: Operation, verb: Verb, body: Message, members: list[MemberView]
) -> None:
    calls = [_call(group.record, operation, verb, body, member) for member in members]
    parts = await asyncio.gather(*(_one(operator, call) for call in calls))
    if failed := next((part for part in parts if part.error), None):
        error = _named(failed)
        await operator.operations.finish(operation.id, StepResult(members=list(parts)), error)
    else:
        noop = all(part.operation is not None and part.operation.noop for part in parts)
        await _hand_back(operator, group, operation.target, verb)
        await operator.operations.finish(operation.id, StepResult(members=list(parts)), noop=noop)
    operator.changed(group.record.group)


def _call(record: GroupRecord, operation: Operation, verb: Verb, body: Message, member: MemberView) -> Call:
    state = member.state
    name = base(verb, f"step/{operation.id}", state.boot if state else 0)
    return Call(
        member=member.name,
        verb=verb,
        body=body,
        base=name,
        key=attempt_key(name, member),
        epoch=record.epoch,
        instance=instance(state) if state and state.instance.pid else "",
        deadline=STEP_DEADLINE,
    )


async def _one(operator: Operator, call: Call) -> MemberStep:
    outcome = await operator.driver.ask(call)
    if outcome is None:
        message = f"{call.member} gave no answer; its outcome is unknown"
        return MemberStep(member=call.member, error=EbbtideError(ErrorCode.UNREACHABLE, message).body())
    return MemberStep(member=call.member, operation=outcome.operation, error=error_of(outcome))


def _named(part: MemberStep) -> ErrorBody:
    error = part.error or EbbtideError(ErrorCode.INTERNAL, "failed without a reason").body()
    details = {**error.details, "member": part.member}
    return error.model_copy(update={"message": f"{part.member}: {error.message}", "details": details})


async def _hand_back(operator: Operator, group: Group, server: str, verb: Verb) -> None:
    async with group.lock:
        if verb is Verb.RESUME and group.record.lease is None and server in group.record.manual:
            manual = group.record.manual - {server}
            await operator.save(group, group.record.model_copy(update={"manual": manual}))
