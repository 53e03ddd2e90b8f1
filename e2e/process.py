"""Runs other programs: a failure is one readable error with what the program said last."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A run in a fresh checkout finds what an earlier one made, if both name the same folder.
CACHE = Path(os.environ.get("EBBTIDE_E2E_CACHE") or ROOT / "build" / "e2e")


class CommandError(Exception):
    """A program failed; the text names it, its exit code and the end of its output."""


def run(
    *command: str | Path, env: Mapping[str, str] | None = None, stdin: str | None = None, seconds: float = 900
) -> str:
    """Run `command` and return its standard output. `env` is added to the environment.

    Raises CommandError if it fails or takes more than `seconds`.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words, env={**os.environ, **(env or {})}, input=stdin, text=True, capture_output=True, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"{' '.join(words)}: {error}") from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-4000:]
        raise CommandError(f"{' '.join(words)}: exit {done.returncode}\n{said}")
    return done.stdout


def succeeds(*command: str | Path, env: Mapping[str, str] | None = None) -> bool:
    """Say whether `command` exits 0."""
    try:
        run(*command, env=env, seconds=60)
    except CommandError:
        return False
    return True


def say(text: str) -> None:
    """Tell the person who waits, at once."""
    print(f"e2e: {text}", flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say how many seconds the block took."""
    begin = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begin:.1f} s")
