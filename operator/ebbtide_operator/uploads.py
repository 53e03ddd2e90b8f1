"""Streamed weights: what a lease's holder sends goes to the agent of every member, or to none of them counts.

Each call is repeated by the sender until it is answered, so members may be at different places in between. A version
serves only when every member has loaded it, so one that has its name with some members alone serves nowhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.upload import PublishRequest, Upload, UploadRequest
from ebbtide_api.verbs import LeaseStage

from . import handoffs
from .commands import Asked, group_named
from .drive.agents import AgentClient, Piece, Unreachable
from .loop import Group, Operator
from .plan import lease as leases

log = logging.getLogger("ebbtide.uploads")
T = TypeVar("T")
_TAKES = frozenset({LeaseStage.GRANTED, LeaseStage.LENT})


async def begin(operator: Operator, name: str, version: int, request: UploadRequest, asked: Asked) -> Upload:
    """Let every member expect a version. Raises EbbtideError: then no member keeps anything of it."""
    group = require_holder(operator, name, asked)
    _require_newer(group, version)
    told = request.model_copy(update={"keep": group.record.serve.version})
    epoch = group.record.epoch
    try:
        answers = await _all(operator, name, lambda agent: agent.open_upload(version, told, epoch))
    except EbbtideError as error:
        if error.code is not ErrorCode.UNREACHABLE:
            await forget(operator, name, version, epoch)
        raise
    return together(version, answers)


async def send(operator: Operator, name: str, version: int, piece: Piece, asked: Asked) -> Upload:
    """Give bytes of a file to every member."""
    group = require_holder(operator, name, asked)
    epoch = group.record.epoch
    return together(version, await _all(operator, name, lambda agent: agent.send_piece(version, piece, epoch)))


async def publish(operator: Operator, name: str, version: int, request: PublishRequest, asked: Asked) -> Upload:
    """Let the version have its name with every member."""
    group = require_holder(operator, name, asked)
    _require_newer(group, version)
    epoch = group.record.epoch
    return together(version, await _all(operator, name, lambda agent: agent.publish_upload(version, request, epoch)))


async def drop(operator: Operator, name: str, version: int, asked: Asked) -> None:
    """Let every member that can be reached forget a version, unless it is on its way to serving."""
    group = require_holder(operator, name, asked)
    _require_newer(group, version)
    await forget(operator, name, version, group.record.epoch)


async def forget(operator: Operator, name: str, version: int, epoch: int) -> None:
    """Give memory back as far as members can be reached: the others forget by themselves, after a while."""
    agents = {member: agent for member, agent in operator.driver.agents(name).items() if agent is not None}
    calls = (agent.drop_upload(version, epoch) for agent in agents.values())
    for member, answer in zip(agents, await asyncio.gather(*calls, return_exceptions=True), strict=True):
        if isinstance(answer, BaseException):
            log.info("%s did not forget version %d: %s", member, version, answer)


# Who may


def require_holder(operator: Operator, name: str, asked: Asked) -> Group:
    """Return the group of a caller who holds its lease now. Raises STALE_EPOCH, NOT_LEASE_HOLDER and others."""
    group = group_named(operator, name)
    record = group.record
    if refusal := leases.check_epoch(record, asked.epoch):
        raise refusal.error()
    handoffs.require_one(name, operator.ways_of(name))
    if not operator.driver.streams(name):
        message = f"the servers of group {name} take weights from {operator.driver.handoff(name)}, not by a stream"
        action = "Publish them there, or set spec.weights.handoff: Stream."
        raise EbbtideError(ErrorCode.TRANSPORT_IMPOSSIBLE, message, next_action=action, group=name)
    if record.lease is None or record.lease.stage not in _TAKES:
        stage = record.lease.stage if record.lease else "nobody's"
        message = f"group {name} takes no weights while its lease is {stage}"
        raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, message, group=name)
    return group


def _require_newer(group: Group, version: int) -> None:
    serves = group.record.serve.version
    if version <= serves:
        message = f"version {version} is not above {serves}"
        raise EbbtideError(ErrorCode.VERSION_REGRESSION, message, version=version, committed=serves)


# All members


async def _all(operator: Operator, name: str, ask: Callable[[AgentClient], Awaitable[T]]) -> list[T]:
    """Ask every member at once. Raises the first refusal, or UNREACHABLE, and names the member."""
    agents = _reached(operator, name)
    answers = await asyncio.gather(*(ask(agent) for agent in agents.values()), return_exceptions=True)
    failed = {member: one for member, one in zip(agents, answers, strict=True) if isinstance(one, BaseException)}
    if failed:
        raise named(failed)
    return [one for one in answers if not isinstance(one, BaseException)]


def _reached(operator: Operator, name: str) -> Mapping[str, AgentClient]:
    agents = operator.driver.agents(name)
    wanted = [f"{server.name}-{n}" for server in operator.servers_of(name) for n in range(server.spec.replicas)]
    absent = [member for member in wanted if agents.get(member) is None]
    if absent or not wanted:
        message = (
            f"weights reach every member of group {name} or none, and {', '.join(absent) or 'all'} cannot be reached"
        )
        action = "Wait until `ebbtide status` shows all members, then publish again."
        raise EbbtideError(ErrorCode.UNREACHABLE, message, next_action=action, members=absent)
    return {member: agent for member in wanted if (agent := agents[member])}


def named(failed: Mapping[str, BaseException]) -> EbbtideError:
    """Return the error that says most of what failed: a refusal rather than silence."""
    ordered = sorted(failed.items(), key=lambda item: (not isinstance(item[1], EbbtideError), item[0]))
    member, error = ordered[0]
    if isinstance(error, Unreachable):
        message = f"{member} did not answer: {error}"
        return EbbtideError(ErrorCode.UNREACHABLE, message, member=member, members=sorted(failed))
    if not isinstance(error, EbbtideError):
        raise error
    body = error.body()
    details = {**body.details, "member": member, "members": sorted(failed)}
    return EbbtideError.of(body.model_copy(update={"message": f"{member}: {body.message}", "details": details}))


def together(version: int, answers: list[Upload]) -> Upload:
    """Return how far all members are: each file as far as the one that has least of it."""
    behind = [one for one in answers if not one.published]
    if not behind:
        return answers[0]
    files = {file for one in behind for file in one.received}
    received = {file: min(one.received.get(file, 0) for one in behind) for file in files}
    return Upload(version=version, received=received)
