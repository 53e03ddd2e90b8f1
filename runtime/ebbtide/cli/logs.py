"""`ebbtide logs`: what an engine or its agent wrote, from the files of the local operator."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ebbtide_api.errors import EbbtideError, ErrorCode

from .console import err, out


@dataclass(frozen=True)
class Asked:
    """Whose log, and how much of it."""

    server: str
    agent: bool = False
    follow: bool = False
    lines: int = 100


def logs(asked: Asked, home: Path) -> int:
    """Print a log. Raises NOT_FOUND, naming what there is."""
    paths = [home / "members" / name / ("agent.log" if asked.agent else "engine.log") for name in _members(asked, home)]
    for path in paths:
        if len(paths) > 1:
            err.rule(path.parent.name)
        out.out("".join(tail(path, asked.lines)), end="", highlight=False)
    if asked.follow:
        _follow(paths)
    return 0


def _members(asked: Asked, home: Path) -> list[str]:
    known = {path.parent.name: _server(path) for path in sorted(home.glob("members/*/member.json"))}
    found = [name for name, server in known.items() if asked.server in {name, server}]
    if not found:
        there = ", ".join(sorted({*known, *known.values()})) or "none"
        message = f"there is no server {asked.server} in {home}; there are: {there}."
        raise EbbtideError(ErrorCode.NOT_FOUND, message, next_action="Name one of these, or another --home.")
    return found


def _server(path: Path) -> str:
    try:
        return str(json.loads(path.read_text())["server"])
    except (OSError, ValueError, KeyError, TypeError):
        return path.parent.name.rpartition("-")[0]


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file; none if there is no file yet."""
    try:
        with path.open(errors="replace") as file:
            return list(deque(file, maxlen=lines))
    except FileNotFoundError:
        return []


def _follow(paths: list[Path]) -> None:
    followed = [grown(path) for path in paths]
    try:
        while True:
            for growing in followed:
                out.out(next(growing), end="", highlight=False)
            out.file.flush()
            time.sleep(0.2)
    except KeyboardInterrupt:
        # The way to end it, not a failure.
        err.print()


def grown(path: Path) -> Iterator[str]:
    """Yield, each time, what was added to a file since. It may be missing, cut short, or replaced."""
    at = path.stat().st_size if path.exists() else 0
    inode = path.stat().st_ino if path.exists() else 0
    while True:
        try:
            with path.open(errors="replace") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != inode or found.st_size < at:
                    at, inode = 0, found.st_ino
                text = _read_from(file, at)
                at = file.tell()
        except FileNotFoundError:
            text = ""
        yield text


def _read_from(file: IO[str], at: int) -> str:
    file.seek(at)
    return file.read()
