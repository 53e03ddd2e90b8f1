"""What the agent does by itself: bring a fresh engine up, and find out where a member is after its own restart."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import EngineState, Phase, Weights
from ebbtide_api.verbs import OperationStatus, ResumeResult, SleepRequest, Verb

from ..action import Running
from ..engine_client import Refused
from ..ingest import folder_of
from ..lifecycle import Event, asleep, derive, goal_reached
from ..member import FaultError, Member
from ..probe import Free, Identity
from ..store import Recorded
from .common import source, source_lost
from .resume import verify_and_open
from .sleep import USED_BEFORE, measured_asleep
from .update import record, reload_committed

log = logging.getLogger("ebbtide.agent")


async def bring_up(member: Member, running: Running) -> ResumeResult:
    """Take a fresh engine to Running: the committed weights, a canary, open. Raises CANARY_FAILED, FaultError."""
    committed = member.store.memory.committed.version
    if member.ranks.version != committed or member.ranks.pending is not None:
        if source(member) is None:
            # It stays shut, and new weights are the way on.
            member.apply(Event.ENGINE_READY)
            raise source_lost(member)
        running.progress = f"loading version {committed}"
        await reload_committed(member)
    else:
        member.set_versions(committed)
    member.apply(Event.ENGINE_READY)
    return await verify_and_open(member, running, member.config.canary)


async def adopt(member: Member) -> None:
    """Leave `Unknown`: observe until a phase follows from it. An engine that never answers meets the deadline."""
    while member.phase is Phase.UNKNOWN:
        answer = await member.engine.state() if _answers(member) else None
        if answer is None or isinstance(answer, EngineState | Refused):
            await _take_in(member, answer if isinstance(answer, EngineState) else None)
            await _settle(member)
            return
        log.info("not known yet: %s", answer.message)
        await asyncio.sleep(member.settings.observe_s)


def _answers(member: Member) -> bool:
    return member.granted and member.engine_alive()


async def _take_in(member: Member, state: EngineState | None) -> None:
    used = None
    if state is not None:
        with contextlib.suppress(FaultError):  # ranks that disagree are derived as Faulted
            member.see(state)
        await _recover_commit(member)
        used = await _measured_free(member)
    phase = derive(member.observation(state, used))
    if phase is Phase.FAULTED:
        member.fault(EbbtideError(ErrorCode.ENGINE_FAULTED, "the engine is in no known state, or died"))
    else:
        member.apply(Event.DERIVED, derived=phase)


async def _recover_commit(member: Member) -> None:
    """Record a commit that the engine made and the agent did not live to record."""
    ranks = member.ranks
    if not ranks.agree or ranks.pending is not None or ranks.weights is not Weights.RESIDENT:
        return
    copy = folder_of(Path(member.config.weights_dir), ranks.version)
    if ranks.version > member.store.memory.committed.version and copy.is_dir():
        await record(member, ranks.version)
    member.set_versions(ranks.version)


async def _measured_free(member: Member) -> int | None:
    """Return the used bytes of a member that says it sleeps, if they are measured free, twice."""
    expected = member.expected_target()
    if expected is None or not asleep(member.ranks):
        return None
    settle = SleepRequest().settle
    release = await member.probe.released(expected, settle=settle, within=0, engine=Identity.of(member.page))
    return release.measured.used_bytes if isinstance(release, Free) else None


async def _settle(member: Member) -> None:
    """Answer the operation that the agent before died in: done if its goal is true, else unknown."""
    current = member.store.memory.current
    if current is None:
        return
    verb, version = Verb(current.operation.verb), current.body.get("version")
    if goal_reached(verb, version, member.facts()):
        ended: dict[str, Any] = {"status": OperationStatus.DONE, "result": _result(member, verb, current)}
    else:
        sentence = "the agent restarted while it ran; its outcome is unknown"
        error = EbbtideError(ErrorCode.UNREACHABLE, sentence, phase=member.phase.value)
        ended = {"status": OperationStatus.FAILED, "error": error.body()}
    operation = current.operation.model_copy(update={**ended, "phase": member.phase})
    await member.store.finish(current.model_copy(update={"operation": operation}))


def _result(member: Member, verb: Verb, lost: Recorded) -> dict[str, Any] | None:
    if verb is Verb.SLEEP:
        return measured_asleep(member, lost.note.get(USED_BEFORE)).wire()
    if verb is Verb.RESUME:
        version = member.ranks.version
        return ResumeResult(weight_version=version, cache_epoch=version).wire()
    return None
