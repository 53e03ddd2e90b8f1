"""Files that are there whole or not at all, readable by their owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

PRIVATE = 0o600


def private_folder(path: Path) -> Path:
    """Make a folder (and those above it) that only its owner may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file: after a crash of ours at any point it holds the old bytes or the new ones.

    `durable` says so of a crash of the machine, too, and costs two syncs of the disk.
    """
    private_folder(path.parent)
    temporary = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_or_none(path: Path) -> bytes | None:
    """Return a file's bytes, or None when it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def keep_secret(path: Path) -> str:
    """Return the secret in a file, made at the first call and kept (mode 0600)."""
    known = read_or_none(path)
    if known and known.strip():
        path.chmod(PRIVATE)
        return known.decode().strip()
    made = secrets.token_urlsafe(32)
    write_atomic(path, made.encode())
    return made
