"""What the agent must not forget when it dies: `state.json`, written whole, by rename, and synced before it counts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from ebbtide_api.base import Reading
from ebbtide_api.verbs import Operation
from pydantic import Field, ValidationError

REMEMBERED = 64


class Committed(Reading):
    """A committed version of the weights and the member's own copy of it. Version 0 is the model's source."""

    version: int = 0
    path: str = ""


class Recorded(Reading):
    """An operation and the digest of its verb and body: the same id with another digest is another call."""

    digest: str
    body: dict[str, Any] = Field(default_factory=dict)
    note: dict[str, int] = Field(default_factory=dict)
    operation: Operation


class Memory(Reading):
    """The remembered state. `current` is an operation that was running when this was written.

    `epoch` is the highest seen of a lease, `leader` that of an operator: on a cluster one leads, others did before.
    `model` and `layout` are digests of what the rest was learned of: the weights, and how the engine runs them.
    """

    model: str = ""
    layout: str = ""
    epoch: int = 0
    leader: int = 0
    committed: Committed = Committed()
    residual: int | None = None
    cycle: int = 0
    canaries: dict[str, list[int]] = Field(default_factory=dict)
    finished: list[Recorded] = Field(default_factory=list)
    current: Recorded | None = None


class StoreError(Exception):
    """The remembered state cannot be read. Starting without it would forget the epoch, so the agent does not."""


class Store:
    """The memory, and the file that outlives the process. Changes are visible at once and durable when awaited."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = asyncio.Lock()
        self.memory = _read(path)

    async def save(self, **changes: object) -> None:
        """Change fields of the memory, durably."""
        self.memory = self.memory.model_copy(update=changes)
        async with self._lock:
            # Not the argument's copy: a later change may be in memory already, and must not be undone on disk.
            await asyncio.to_thread(write_atomic, self._path, self.memory.model_dump_json(by_alias=True).encode())

    async def fit(self, model: str, layout: str) -> None:
        """Forget what was learned of another model, or of another engine. The epoch and the operations stay."""
        known = self.memory
        if (known.model, known.layout) == (model, layout):
            return
        changes: dict[str, object] = {"model": model, "layout": layout}
        if known.layout != layout:
            changes |= {"residual": None, "canaries": {}}
        if known.model and known.model != model:
            changes |= {"residual": None, "canaries": {}, "committed": Committed()}
        await self.save(**changes)

    async def finish(self, record: Recorded) -> None:
        """Move an operation to the finished ones, of which the last 64 are remembered."""
        finished = [*self.memory.finished, record][-REMEMBERED:]
        current = self.memory.current
        if current is not None and current.operation.id == record.operation.id:
            current = None
        # Another one stays: an agent before this one died in it, and nobody has answered it yet.
        await self.save(finished=finished, current=current)

    def find(self, key: str) -> Recorded | None:
        """Return the operation with an id, running or finished."""
        current = self.memory.current
        if current is not None and current.operation.id == key:
            return current
        return next((record for record in self.memory.finished if record.operation.id == key), None)


def _read(path: Path) -> Memory:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Memory()
    try:
        return Memory.model_validate_json(text)
    except ValidationError as error:
        raise StoreError(
            f"{path} is damaged: {error.error_count()} errors; the first: {error.errors()[0]['msg']}"
        ) from error


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file whole, readable by its owner only: temporary, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
