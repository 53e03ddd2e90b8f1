"""Takes published weights into the member's own memory: check, copy, checksum the copied bytes, rename.

The publisher is not trusted. Names are plain, files are regular and not links, and nothing is believed that was read
from a file which can still change: checksums and headers are those of our own copy.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide_api.manifest import MANIFEST, FileEntry, Manifest, TensorEntry
from pydantic import ValidationError

from ..native import NativeError, Range, Status, crc32c, ingest
from .checkpoint import CheckpointError, Expected, read_header
from .lifecycle import Refusal, host_refusal
from .manifest_check import Bad, Reason, check_header, check_manifest

MAX_MANIFEST = 64 << 20
_BATCH = 128 << 20
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True)
class Ingested:
    """A checked copy of a version, under its final name."""

    version: int
    path: Path
    size: int


@dataclass(frozen=True)
class Ingest:
    """What is taken in, and where to. `room` is in bytes; `cancel` ends the copy between batches.

    `received` is the folder of what was streamed to this member.
    """

    source: Path
    weights_dir: Path
    version: int
    expected: Expected
    room: int
    cancel: threading.Event
    threads: int = 2
    received: Path | None = None

    @property
    def is_ours(self) -> bool:
        """Whether only this agent writes the source: then a second name for its files is a copy that cannot change."""
        return self.received is not None and self.source.parent == self.received


def folder_of(weights_dir: Path, version: int) -> Path:
    """Return where the member's own copy of a version lies."""
    return weights_dir / f"v{version}"


def run(job: Ingest) -> Ingested | Bad | Refusal:
    """Take a version in. Blocks: run it in a thread. Nothing is left behind unless it succeeds."""
    try:
        folder = os.open(job.source, _OPEN | os.O_DIRECTORY)
    except OSError as error:
        return Bad(Reason.UNREADABLE, f"{job.source}: {error.strerror}")
    try:
        return _take(job, folder)
    finally:
        os.close(folder)


def discard(weights_dir: Path, keep: frozenset[int]) -> None:
    """Delete own copies of other versions than those to keep, and what an ingest that died left behind."""
    names = {folder_of(weights_dir, version).name for version in keep}
    for path in weights_dir.iterdir() if weights_dir.is_dir() else ():
        if path.name not in names:
            shutil.rmtree(path, ignore_errors=True)


def _take(job: Ingest, folder: int) -> Ingested | Bad | Refusal:
    manifest = _read_manifest(folder)
    if isinstance(manifest, Bad):
        return manifest
    bad = check_manifest(manifest, job.version, job.expected)
    if bad is not None:
        return bad
    size = sum(file.length for file in manifest.files)
    if size > job.room and not job.is_ours:
        return host_refusal(f"a copy of version {job.version}", size, job.room)
    return _copy_all(job, folder, manifest, size)


def _read_manifest(folder: int) -> Manifest | Bad:
    descriptor = _open_regular(folder, MANIFEST)
    if isinstance(descriptor, Bad):
        return descriptor
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_MANIFEST + 1)
    if len(data) > MAX_MANIFEST:
        return Bad(Reason.UNREADABLE, f"the manifest is larger than {MAX_MANIFEST} bytes")
    return _parse_manifest(data)


def _parse_manifest(data: bytes) -> Manifest | Bad:
    try:
        return Manifest.model_validate(json.loads(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return Bad(Reason.UNREADABLE, f"the manifest's {'.'.join(map(str, first['loc']))}: {first['msg']}")
    except (ValueError, RecursionError):
        return Bad(Reason.TORN, "the manifest is not whole JSON")


def _open_regular(folder: int, name: str) -> int | Bad:
    try:
        descriptor = os.open(name, _OPEN, dir_fd=folder)
    except OSError as error:
        return Bad(Reason.UNREADABLE, f"{name}: {_why(error)}", name)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return Bad(Reason.UNREADABLE, f"{name}: not a regular file", name)
    return descriptor


def _why(error: OSError) -> str:
    return "a symbolic link is not followed" if error.errno == errno.ELOOP else error.strerror or str(error)


def _copy_all(job: Ingest, folder: int, manifest: Manifest, size: int) -> Ingested | Bad | Refusal:
    final = folder_of(job.weights_dir, job.version)
    temporary = job.weights_dir / f".{final.name}.{secrets.token_hex(4)}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True, mode=0o700)
    try:
        for file in manifest.files:
            bad = _copy_file(job, folder, file, manifest, temporary)
            if bad is not None:
                return bad
        # A copy of an update that was aborted, or whose agent died: it was never committed.
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Ingested(job.version, final, size)


def _copy_file(job: Ingest, folder: int, file: FileEntry, manifest: Manifest, into: Path) -> Bad | Refusal | None:
    tensors = [tensor for tensor in manifest.tensors if tensor.file == file.name]
    source = _open_regular(folder, file.name)
    if isinstance(source, Bad):
        return source
    if job.is_ours:
        os.link(file.name, into / file.name, src_dir_fd=folder, follow_symlinks=False)
        target = os.dup(source)
    else:
        target = os.open(into / file.name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(source).st_size != file.length:
            return Bad(Reason.TORN, f"{file.name} has {os.fstat(source).st_size} bytes, not {file.length}", file.name)
        bad = _copy_ranges(job, source, target, file, tensors)
    finally:
        os.close(source)
        os.close(target)
    return bad or _check_copy(into / file.name, tensors)


def _copy_ranges(
    job: Ingest, source: int, target: int, file: FileEntry, tensors: list[TensorEntry]
) -> Bad | Refusal | None:
    parts = [(file.name, Range(0, file.header_length), file.header_crc32c)]
    parts += [(tensor.name, Range(tensor.offset, tensor.length), tensor.crc32c) for tensor in tensors]
    for batch in _batches(parts):
        if job.cancel.is_set():
            return Bad(Reason.UNREADABLE, "the ingest was cancelled")
        try:
            ranges = [part[1] for part in batch]
            found = _sums(source, ranges) if job.is_ours else ingest(source, target, ranges, threads=job.threads)
        except NativeError as error:
            return _native(error, file)
        for (name, _, wanted), crc in zip(batch, found, strict=True):
            if crc != wanted:
                return Bad(Reason.CHECKSUM_MISMATCH, f"the bytes of {name!r} have CRC32C {crc}, not {wanted}", name)
    return None


def _sums(source: int, ranges: list[Range]) -> list[int]:
    """Return the CRC32C of ranges of a file that only we write, and whose size was checked."""
    with mmap.mmap(source, 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
        found = []
        for part in ranges:
            with view[part.offset : part.offset + part.length] as bytes_of:
                found.append(crc32c(bytes_of))
        return found


def _batches(parts: list[tuple[str, Range, int]]) -> Iterator[list[tuple[str, Range, int]]]:
    batch: list[tuple[str, Range, int]] = []
    size = 0
    for part in parts:
        batch.append(part)
        size += part[1].length
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _native(error: NativeError, file: FileEntry) -> Bad | Refusal:
    if error.status is Status.TRUNCATED:
        return Bad(Reason.TORN, f"{file.name} became shorter while it was copied", file.name)
    if error.status is Status.NO_MEMORY:
        return host_refusal(f"a copy of {file.name}", file.length, 0)
    return Bad(Reason.UNREADABLE, f"{file.name}: {error.message}", file.name)


def _check_copy(path: Path, tensors: list[TensorEntry]) -> Bad | None:
    try:
        return check_header(path.name, read_header(path), tensors)
    except CheckpointError as error:
        return Bad(Reason.UNREADABLE, f"{path.name}: {error}", path.name)
