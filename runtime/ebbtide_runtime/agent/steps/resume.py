"""Opening: a canary answers right, then the gate opens, then the weights are parked while serving."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import Parking
from ebbtide_api.state import KV, EngineState, Weights
from ebbtide_api.verbs import Canary, CanaryResult, ResumeRequest, ResumeResult

from ...native import Field
from ..action import Action, Running
from ..engine_client import Completion
from ..lifecycle import Event, should_park
from ..member import FaultError, Member
from .common import fresh_state, parking_room, weights_bytes
from .drain import must

log = logging.getLogger("ebbtide.agent")


class Resume(Action[ResumeRequest]):
    """Verify, then open admission."""

    state: EngineState

    async def prepare(self) -> None:
        """Refuse weights that are not the committed ones, and caches of other weights."""
        self.state = await fresh_state(self.member)
        require_committed(self.member)

    async def run(self, running: Running) -> ResumeResult:
        """Schedule again where that was stopped; then the canary; then open."""
        member = self.member
        if self.state.paused:
            await _schedule(member)
        return await verify_and_open(member, running, self._canary())

    def _canary(self) -> Canary:
        # An absent canary is the member's own.
        return self.body.canary if "canary" in self.body.model_fields_set else self.member.config.canary

    async def already(self) -> ResumeResult:
        """Answer a member that serves."""
        return _result(self.member, None)


def require_committed(member: Member) -> None:
    """Raise WEIGHTS_NOT_COMMITTED unless weights, KV and caches are those of the committed version."""
    ranks, committed = member.ranks, member.store.memory.committed.version
    whole = ranks.weights is Weights.RESIDENT and ranks.kv is KV.RESIDENT and ranks.pending is None
    epoch = member.page.get(Field.CACHE_EPOCH)
    if not (whole and ranks.version == committed == epoch):
        sentence = f"weights {ranks.weights} of version {ranks.version}, caches of {epoch}; {committed} is committed"
        details: dict[str, Any] = {"version": ranks.version, "cacheEpoch": epoch, "committed": committed}
        raise EbbtideError(ErrorCode.WEIGHTS_NOT_COMMITTED, sentence, weights=ranks.weights.value, **details)


async def _schedule(member: Member) -> None:
    late = EbbtideError(ErrorCode.PHASE_DEADLINE, "the engine did not schedule again")
    with member.stage(member.settings.pause_s, late, fatal=True):
        await must(member.engine.resume(), "resume")


async def verify_and_open(member: Member, running: Running, canary: Canary) -> ResumeResult:
    """Run the canary and open the gate. Raises CANARY_FAILED: the member stays where it is, closed."""
    running.progress = "canary"
    result = await _verify(member, canary)
    member.apply(Event.VERIFIED)
    running.progress = "open"
    await _park(member)
    return _result(member, result)


def _result(member: Member, canary: CanaryResult | None) -> ResumeResult:
    epoch = member.page.get(Field.CACHE_EPOCH)
    return ResumeResult(weight_version=member.ranks.version, cache_epoch=epoch, canary=canary)


async def _verify(member: Member, canary: Canary) -> CanaryResult:
    seconds = member.settings.canary_s
    late = EbbtideError(ErrorCode.CANARY_FAILED, f"the canary was not answered within {seconds} s")
    with member.stage(seconds, late):
        answer = await member.engine.complete(member.config.served_name, canary)
    if not isinstance(answer, Completion):
        if not member.engine_alive():
            raise FaultError(ErrorCode.ENGINE_FAULTED, f"the engine died of its canary: {answer.message}")
        raise EbbtideError(ErrorCode.CANARY_FAILED, f"the canary was not answered: {answer.message}")
    key = _key(member.ranks.version, canary)
    expected = canary.expect if canary.expect is not None else member.store.memory.canaries.get(key)
    if expected is not None and answer.tokens != expected:
        sentence = "the canary was answered with other tokens"
        raise EbbtideError(ErrorCode.CANARY_FAILED, sentence, tokens=answer.tokens, expected=expected)
    await _remember(member, key, answer.tokens)
    return CanaryResult(ok=True, tokens=answer.tokens, expected=expected, text=answer.text)


async def _remember(member: Member, key: str, tokens: list[int]) -> None:
    canaries = member.store.memory.canaries
    if canaries.get(key) != tokens:
        await member.store.save(canaries={**canaries, key: tokens})


def _key(version: int, canary: Canary) -> str:
    asked = f"{canary.tokens} {canary.prompt}".encode()
    return f"{version}:{hashlib.sha256(asked).hexdigest()[:16]}"


async def _park(member: Member) -> None:
    """Begin the parked copy. Serving does not depend on it: a failure is the next sleep's business."""
    late = EbbtideError(ErrorCode.PHASE_DEADLINE, "the engine did not begin to park")
    with member.stage(member.settings.pause_s, late, fatal=True):
        state = await member.engine.state()
        if isinstance(state, EngineState) and _wants_parking(member, state):
            failure = await member.engine.park()
            if failure is not None:
                log.warning("park: %s", failure.message)
            elif isinstance(begun := await member.engine.state(), EngineState):
                # Seen now, so that the observer looks often until the copy is whole.
                member.see(begun)


def _wants_parking(member: Member, state: EngineState) -> bool:
    measured = member.probe.latest()
    return should_park(
        eager=member.config.parking is Parking.EAGER,
        valid=all(rank.parked is not None and rank.parked.valid for rank in state.ranks),
        parking=any(rank.parking for rank in state.ranks),
        weights_bytes=weights_bytes(state),
        room=parking_room(member, measured.host_bytes if measured else 0),
    )
