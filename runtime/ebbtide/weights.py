"""Publishes weights into a group's hand-off folder, so that a version is there whole or not at all.

    handoff/.tmp-<pid>-<random>/   being written
    handoff/v7/manifest.json       what `ebbtide_api.manifest` says
    handoff/v7/model-00001.safetensors

The last two versions stay; older ones are deleted before a new one takes their memory.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide_api.base import LARGEST_INTEGER
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.manifest import MANIFEST, FileEntry, Manifest, TensorEntry

from .crc32c import backend, crc32c
from .progress import OnProgress, Progress, Stage, silent
from .safetensors import arrange, files_of, header_of, pieces_in
from .tensors import Names, Piece, pieces_of, total

KEEP = 2
SHARD = 4 << 30
SLOW = 64 << 20
MIB = 1 << 20


@dataclass(frozen=True)
class Published:
    """A version in the hand-off folder. `seconds` is how long writing it took; 0 if it was there already."""

    version: int
    path: Path
    tensors: int
    bytes: int
    seconds: float = 0.0


def publish(
    tensors: Mapping[str, object],
    handoff: Path,
    version: int,
    *,
    dtype: object = None,
    names: Names | None = None,
    on_progress: OnProgress = silent,
) -> Published:
    """Publish a state dict of torch tensors or numpy arrays.

    Raises INVALID_REQUEST (a tensor that cannot be written), VERSION_REGRESSION (the version is there with other
    content), HOST_MEMORY_INSUFFICIENT (before a byte is written).
    """
    return _publish(pieces_of(tensors, dtype=dtype, names=names), handoff, version, on_progress)


def publish_path(
    path: str | os.PathLike[str],
    handoff: Path,
    version: int,
    *,
    names: Names | None = None,
    on_progress: OnProgress = silent,
) -> Published:
    """Publish a safetensors file or a folder of them, by copy. A folder with a manifest of this version stays there.

    Raises what `publish` raises; INVALID_REQUEST names the file.
    """
    source = Path(path).resolve()
    if names is None and (ready := _vouched(source, version)):
        return ready
    return _publish(pieces_in(files_of(source), names), handoff, version, on_progress)


def _vouched(source: Path, version: int) -> Published | None:
    manifest = read_manifest(source)
    if manifest is None or manifest.version != version:
        return None
    return _published(source, manifest)


def read_manifest(folder: Path) -> Manifest | None:
    """Return a folder's manifest, or None if there is none that can be read."""
    try:
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None


def _publish(pieces: Sequence[Piece], handoff: Path, version: int, on_progress: OnProgress) -> Published:
    check_publishable(pieces, version)
    handoff.mkdir(parents=True, exist_ok=True)
    _sweep(handoff, version)
    _check_room(handoff, total(pieces))
    warn_if_slow(total(pieces))
    began = time.monotonic()
    with _temporary(handoff) as folder:
        manifest = _write(folder, pieces, version, meter(version, total(pieces), began, on_progress))
        written = _reveal(folder, handoff / f"v{version}", manifest)
    return replace(_published(handoff / f"v{version}", manifest), seconds=(time.monotonic() - began) * written)


def check_publishable(pieces: Sequence[Piece], version: int) -> None:
    """Raise INVALID_REQUEST for what is no version."""
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= LARGEST_INTEGER:
        message = f"version {version!r} is no whole number from 1 to {LARGEST_INTEGER}."
        raise EbbtideError(ErrorCode.INVALID_REQUEST, message, field="version")
    if not pieces:
        raise EbbtideError(ErrorCode.INVALID_REQUEST, "there is no tensor to publish.", field="tensors")


def _published(path: Path, manifest: Manifest) -> Published:
    size = sum(entry.length for entry in manifest.tensors)
    return Published(manifest.version, path, len(manifest.tensors), size)


# Room


def _sweep(handoff: Path, version: int) -> None:
    """Delete versions that nobody will ask for: agents keep their own copies of what they serve."""
    older = sorted((number for number in _versions(handoff) if number < version), reverse=True)
    for number in older[KEEP - 1 :]:
        shutil.rmtree(handoff / f"v{number}", ignore_errors=True)
    for left in handoff.glob(".tmp-*"):
        if not _alive(left.name.split("-")[1]):
            shutil.rmtree(left, ignore_errors=True)


def _versions(handoff: Path) -> Iterator[int]:
    return (int(folder.name[1:]) for folder in handoff.glob("v*") if folder.name[1:].isdecimal())


def _alive(pid: str) -> bool:
    return pid.isdecimal() and Path("/proc", pid).exists()


def _check_room(handoff: Path, need: int) -> None:
    free = shutil.disk_usage(handoff).free
    if need > free:
        message = f"publishing needs {need / MIB:.0f} MiB in {handoff}, and {free / MIB:.0f} MiB are free."
        numbers = {"needMiB": round(need / MIB), "availMiB": round(free / MIB)}
        raise EbbtideError(ErrorCode.HOST_MEMORY_INSUFFICIENT, message, next_action="Make room there.", **numbers)


def warn_if_slow(size: int) -> None:
    """Say that checksums will take long, when they will."""
    if size > SLOW and backend() == "python":
        text = f"checksums of {size / MIB:.0f} MiB in plain Python take minutes: install numpy, or ebbtide[runtime]"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


# Writing


Advance = Callable[[int], None]


def meter(version: int, size: int, began: float, on_progress: OnProgress, done_what: str = "written") -> Advance:
    """Return what counts bytes, and reports them."""
    done = 0

    def advance(written: int) -> None:
        nonlocal done
        done += written
        text = f"version {version}: {done / MIB:.0f} of {size / MIB:.0f} MiB {done_what}"
        seconds = time.monotonic() - began
        on_progress(Progress(Stage.PUBLISH, text, done=done, total=size, seconds=seconds))

    return advance


@contextmanager
def _temporary(handoff: Path) -> Iterator[Path]:
    folder = handoff / f".tmp-{os.getpid()}-{secrets.token_hex(4)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, pieces: Sequence[Piece], version: int, advance: Advance) -> Manifest:
    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for number, shard in enumerate(shards(pieces), start=1):
        name = f"model-{number:05}.safetensors"
        file, entries = _write_file(folder / name, arrange(shard), advance)
        files.append(file)
        tensors.extend(entries)
    manifest = Manifest(version=version, files=files, tensors=tensors)
    _write_synced(folder / MANIFEST, manifest.model_dump_json(by_alias=True).encode())
    return manifest


def shards(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield what goes into one file each."""
    shard: list[Piece] = []
    for piece in pieces:
        if shard and total(shard) + piece.length > SHARD:
            yield shard
            shard = []
        shard.append(piece)
    yield shard


def _write_file(path: Path, pieces: Sequence[Piece], advance: Advance) -> tuple[FileEntry, list[TensorEntry]]:
    header = header_of(pieces)
    at = len(header)
    entries = []
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(header))
        for piece in pieces:
            crc = _write_piece(file.fileno(), piece, advance)
            entries.append(entry_of(piece, path.name, at, crc))
            at += piece.length
        os.fsync(file.fileno())
    whole = FileEntry(name=path.name, length=at, header_length=len(header), header_crc32c=crc32c(header))
    return whole, entries


def entry_of(piece: Piece, file: str, offset: int, crc: int) -> TensorEntry:
    """Return what the manifest says of a tensor."""
    return TensorEntry(
        name=piece.name,
        file=file,
        offset=offset,
        length=piece.length,
        shape=list(piece.shape),
        dtype=piece.code,
        crc32c=crc,
    )


def _write_piece(descriptor: int, piece: Piece, advance: Advance) -> int:
    crc = 0
    for chunk in piece.chunks():
        # If the trainer changes a tensor between these two lines, the agent's own checksum will refuse the version.
        crc = crc32c(chunk, crc)
        _write_all(descriptor, chunk)
        advance(len(chunk))
    return crc


def _write_all(descriptor: int, view: memoryview) -> None:
    while view:
        view = view[os.write(descriptor, view) :]


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(data))
        os.fsync(file.fileno())


def _reveal(folder: Path, target: Path, manifest: Manifest) -> bool:
    """Give the folder its name. False if the same content has it already."""
    try:
        folder.rename(target)
    except OSError:
        if read_manifest(target) == manifest:
            return False
        if not target.exists():
            raise
        message = f"version {manifest.version} is in {target.parent} already, with other content."
        raise EbbtideError(ErrorCode.VERSION_REGRESSION, message, version=manifest.version) from None
    _sync_folder(target.parent)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
