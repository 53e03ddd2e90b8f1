"""New weights: check whole, copy, load, commit. And the way back: load the committed ones again."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import Phase, Weights
from ebbtide_api.verbs import BeginUpdateRequest, CommitUpdateRequest, Nothing

from .. import ingest
from ..action import Action, Running, refused
from ..checkpoint import CheckpointError, Expected, read_expected
from ..ingest import Ingest, Ingested
from ..lifecycle import Event, Meet, Refusal
from ..manifest_check import Bad, Reason
from ..member import Member
from ..store import Committed
from .common import fresh_measurement, room, source, source_lost


def _loaded(version: int, ranks: Meet) -> bool:
    return ranks.weights is Weights.RESIDENT and ranks.pending == version


def _committed(version: int, ranks: Meet) -> bool:
    return ranks.weights is Weights.RESIDENT and ranks.pending is None and ranks.version == version


async def load(member: Member, path: str, version: int) -> None:
    """Load weights into the engine. Raises FaultError: a load that failed leaves a mix of old and new."""
    await member.command("reload", member.engine.reload(path, version), partial(_loaded, version))


async def commit(member: Member, version: int) -> None:
    """Make the loaded version the engine's, with empty caches, and publish it. Raises FaultError."""
    await member.command("commit", member.engine.commit(version), partial(_committed, version))
    member.set_versions(version)


async def tidy(member: Member, *keep: int) -> None:
    """Delete own copies that nobody needs: all but the committed version's, and those to keep."""
    versions = frozenset({member.store.memory.committed.version, *keep})
    await asyncio.to_thread(ingest.discard, Path(member.config.weights_dir), versions)


def load_s(member: Member, size: int) -> float:
    """Return the time that loading `size` bytes may take."""
    return member.settings.reload_s + member.settings.bytes_s(size)


class BeginUpdate(Action[BeginUpdateRequest]):
    """Check a published version whole, then load it."""

    async def prepare(self) -> None:
        """Refuse older versions, and weights for requests that are frozen half-way."""
        version, committed = self.body.version, self.member.store.memory.committed.version
        if version <= committed:
            sentence = f"version {version} is not above {committed}, which is committed"
            raise EbbtideError(ErrorCode.VERSION_REGRESSION, sentence, version=version, committed=committed)
        if self.member.phase is Phase.PAUSED and (frozen := self.member.page.inflight()):
            sentence = f"{frozen} requests are frozen half-way, with the KV of the old weights"
            raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, sentence, remaining=frozen)

    async def run(self, running: Running) -> None:
        """Take the version in, without the engine; then load it."""
        member = self.member
        taken = await self._take(running)
        running.check()
        member.apply(Event.UPDATE_CHECKED, load_s(member, taken.size))
        await load(member, str(taken.path), taken.version)
        # From here it waits for its commit, not for its load.
        member.begin(Phase.UPDATING)

    async def _take(self, running: Running) -> Ingested:
        member = self.member
        expected = await _expected(member)
        await tidy(member)
        held = (await fresh_measurement(member)).host_bytes
        job = Ingest(
            # A relative path is in our own memory: what was streamed to us.
            source=Path(member.config.memory, self.body.source.path),
            weights_dir=Path(member.config.weights_dir),
            version=self.body.version,
            expected=expected,
            room=room(member, held),
            cancel=threading.Event(),
            received=Path(member.config.received_dir),
        )
        running.progress = "checking and copying"
        seconds = running.clip(member.settings.ingest_s + member.settings.bytes_s(job.room))
        late = EbbtideError(ErrorCode.PHASE_DEADLINE, f"the ingest took longer than {seconds:.1f} s", phase="ingest")
        with member.stage(seconds, late):
            return _ingested(await _in_thread(job))


async def _expected(member: Member) -> Expected:
    try:
        return await asyncio.to_thread(_read_expected, member.config)
    except CheckpointError as error:
        raise _invalid(Bad(Reason.UNREADABLE, f"the original checkpoint: {error}")) from error


def _read_expected(config: MemberConfig) -> Expected:
    # Where the launcher left the headers, the model is in its container alone.
    left = Path(config.headers_dir).is_dir()
    return read_expected(config.headers_dir if left else config.model)


async def _in_thread(job: Ingest) -> Ingested | Bad | Refusal:
    try:
        return await asyncio.to_thread(ingest.run, job)
    finally:
        # An interrupted operation leaves its thread behind; this ends it at the next batch.
        job.cancel.set()


def _ingested(outcome: Ingested | Bad | Refusal) -> Ingested:
    match outcome:
        case Ingested():
            return outcome
        case Bad():
            raise _invalid(outcome)
        case Refusal():
            raise refused(outcome)


def _invalid(bad: Bad) -> EbbtideError:
    return EbbtideError(ErrorCode.MANIFEST_INVALID, bad.message, reason=bad.reason.value, tensor=bad.tensor)


class CommitUpdate(Action[CommitUpdateRequest]):
    """Make the loaded version the member's."""

    async def prepare(self) -> None:
        """Refuse another version than the loaded one."""
        pending = self.member.ranks.pending
        if self.body.version != pending:
            sentence = f"version {pending} is loaded, not {self.body.version}"
            raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, sentence, pending=pending)

    def budget(self) -> float | None:
        """Return the time of a commit."""
        return self.member.settings.commit_s

    async def run(self, running: Running) -> None:
        """Commit in the engine first: a copy that was loaded and never recorded is found again by a new agent."""
        member, version = self.member, self.body.version
        await commit(member, version)
        await record(member, version)
        member.apply(Event.UPDATE_COMMITTED)
        await tidy(member)


async def record(member: Member, version: int) -> None:
    """Remember a committed version and its copy; canaries of older ones are forgotten."""
    path = str(ingest.folder_of(Path(member.config.weights_dir), version))
    canaries = {key: tokens for key, tokens in member.store.memory.canaries.items() if key.startswith(f"{version}:")}
    await member.store.save(committed=Committed(version=version, path=path), canaries=canaries)


class Reload(Action[Nothing]):
    """Load the committed weights again, from the member's own copy or from the model's source."""

    async def prepare(self) -> None:
        """Refuse when their copy is gone."""
        if source(self.member) is None:
            raise source_lost(self.member)

    def budget(self) -> float | None:
        """Return the time of a load, whose size is that of the weights."""
        return load_s(self.member, self.member.arena_bytes()) + self.member.settings.commit_s

    async def run(self, running: Running) -> None:
        """Load and commit."""
        await reload_committed(self.member)
        self.member.apply(Event.UPDATE_COMMITTED)
        await tidy(self.member)


class AbortUpdate(Reload):
    """Forget the loaded version: the committed weights are loaded again."""


async def reload_committed(member: Member) -> None:
    """Load and commit the committed weights. Raises WEIGHTS_NOT_COMMITTED when their copy is gone, FaultError."""
    origin = source(member)
    if origin is None:
        raise source_lost(member)
    path, version = origin
    await load(member, path, version)
    await commit(member, version)
