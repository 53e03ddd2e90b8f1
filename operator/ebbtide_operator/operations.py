"""Operations: what callers asked for, how far it is, how it ended. The last N survive a restart of the operator.

An id runs at most once: the same id with the same body is the same operation, with another body it is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from ebbtide_api.base import Message, Reading
from ebbtide_api.errors import EbbtideError, ErrorBody, ErrorCode
from ebbtide_api.state import PhaseTiming
from ebbtide_api.verbs import LendResult, Operation, OperationStatus, ReclaimResult
from pydantic import ValidationError

from .bell import Bell
from .drive.files import read_or_none, write_atomic
from .plan import Progress

log = logging.getLogger("ebbtide.operations")


class Entry(Reading):
    """An operation, and the digest of what was asked."""

    fingerprint: str
    operation: Operation

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.operation.status is OperationStatus.RUNNING


class _File(Reading):
    entries: list[Entry]


def fingerprint(verb: str, target: str, body: Message) -> str:
    """Return the digest of a request."""
    asked = json.dumps([verb, target, body.wire()], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()


def now() -> str:
    """Return the time as messages carry it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Operations:
    """The operations of one operator. Beginnings and ends survive our own crash; progress does not."""

    def __init__(self, path: Path, kept: int) -> None:
        self._path, self._kept = path, kept
        self._entries: dict[str, Entry] = {}
        self._ended: dict[str, Entry] = {}
        self._started: dict[str, float] = {}
        self._bell = Bell()
        self._closing = False
        self._lock = asyncio.Lock()

    def load(self) -> None:
        """Read what an earlier operator left. A file that cannot be read is put aside."""
        data = read_or_none(self._path)
        if data is None:
            return
        try:
            self._entries = {entry.operation.id: entry for entry in _File.model_validate_json(data).entries}
        except ValidationError:
            aside = self._path.with_name(f"{self._path.name}.corrupt-{time.time_ns()}")
            self._path.rename(aside)
            log.exception("the operations cannot be read; the file was moved to %s", aside)
        self._started = {name: time.monotonic() for name, entry in self._entries.items() if entry.open}

    # reading

    def find(self, name: str) -> Operation | None:
        """Return an operation by its id."""
        entry = self._entries.get(name)
        return entry.operation if entry else None

    def repeated(self, name: str, digest: str) -> Operation | None:
        """Return the operation that a call repeats. Raises OPERATION_MISMATCH when it is another call."""
        entry = self._entries.get(name)
        if entry is not None and entry.fingerprint != digest:
            raise EbbtideError(ErrorCode.OPERATION_MISMATCH, f"operation {name} was asked for with another body")
        return entry.operation if entry else None

    def started(self, target: str, verbs: Iterable[str]) -> dict[str, float]:
        """Return the open operations of a target, and since when we know of each."""
        wanted = set(verbs)
        return {
            name: self._started[name]
            for name, entry in self._entries.items()
            if entry.open and entry.operation.target == target and entry.operation.verb in wanted
        }

    def open_verbs(self) -> list[Operation]:
        """Return every operation that has not ended."""
        return [entry.operation for entry in self._entries.values() if entry.open]

    async def wait(self, name: str, seconds: float) -> Operation | None:
        """Return an operation when it ends, or as it is after `seconds`."""

        def ended() -> bool:
            entry = self._entries.get(name)
            return self._closing or entry is None or not entry.open

        await self._bell.wait_for(ended, seconds)
        return self.find(name)

    def close(self) -> None:
        """Let nobody wait any longer."""
        self._closing = True
        self._bell.ring()

    # writing

    async def begin(self, name: str | None, verb: str, target: str, digest: str) -> Operation:
        """Accept an operation."""
        operation = Operation(
            id=name or uuid.uuid4().hex,
            verb=verb,
            target=target,
            status=OperationStatus.RUNNING,
            started_at=now(),
        )
        self._entries[operation.id] = Entry(fingerprint=digest, operation=operation)
        self._started[operation.id] = time.monotonic()
        await self._save()
        return operation

    async def finish(
        self,
        name: str,
        result: Reading | None = None,
        error: ErrorBody | None = None,
        *,
        noop: bool = False,
    ) -> None:
        """End an operation, and tell those who wait."""
        await self.write_end(name, result, error, noop=noop)
        self.reveal([name])

    async def write_end(
        self,
        name: str,
        result: Reading | None = None,
        error: ErrorBody | None = None,
        *,
        noop: bool = False,
    ) -> None:
        """End an operation on disk; callers see it when it is revealed, with what else belongs to its end."""
        entry = self._entries[name]
        ended = entry.operation.model_copy(
            update={
                "status": OperationStatus.FAILED if error else OperationStatus.DONE,
                "result": result.wire() if result else None,
                "error": error,
                "noop": noop,
                "phases": _phases(result),
                "phase": None,
                "progress": "failed" if error else "done",
                "ended_at": now(),
            }
        )
        self._ended[name] = entry.model_copy(update={"operation": ended})
        await self._save()

    def reveal(self, names: Iterable[str]) -> None:
        """Show ends that are on disk."""
        for name in names:
            self._started.pop(name, None)
            self._entries[name] = self._ended.pop(name)
        self._forget()
        self._bell.ring()

    def progress(self, name: str, progress: Progress) -> None:
        """Say how far an operation is."""
        entry = self._entries.get(name)
        if entry is not None and entry.open:
            moved = entry.operation.model_copy(update={"progress": progress.text, "phase": progress.phase})
            self._entries[name] = entry.model_copy(update={"operation": moved})

    async def _save(self) -> None:
        async with self._lock:
            entries = list((self._entries | self._ended).values())
            data = _File(entries=entries).model_dump_json(by_alias=True, exclude_none=True)
            # Not synced: a machine that crashes takes every operation with it, and the record says what to do next.
            await asyncio.to_thread(write_atomic, self._path, data.encode(), durable=False)

    def _forget(self) -> None:
        ended = [name for name, entry in self._entries.items() if not entry.open]
        for name in ended[: max(0, len(self._entries) - self._kept)]:
            del self._entries[name]


def _phases(result: Reading | None) -> list[PhaseTiming]:
    return result.phases if isinstance(result, LendResult | ReclaimResult) else []
