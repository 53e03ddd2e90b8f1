"""What other processes do in these tests: `python -m tests.unit.native.children ROLE ARGUMENTS...`."""

from __future__ import annotations

import mmap
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from ebbtide_runtime.native import Arena, Measurement, Page, Parked, Tag

from .memory import randomize, write

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 30.0


@contextmanager
def child(role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run a role; it is killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.unit.native.children", role, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str], line: str) -> None:
    """Wait until the child has printed `line`."""
    assert process.stdout is not None
    assert process.stdout.readline().strip() == line


def until(condition: Callable[[], bool]) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "deadline passed"


def say(line: str) -> None:
    print(line, flush=True)


def shared(path: str) -> mmap.mmap:
    """Map a whole file that all processes of a test share."""
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def hammer(page_path: str, witness_path: str, index: str) -> None:
    """Enter and leave for ever: witness byte `index` is 1 inside, the 8 bytes at 64 + 8 * index count admissions."""
    gate = Page.open(page_path).register_gate()
    witness, me = shared(witness_path), int(index)
    counter = memoryview(witness)[64:].cast("Q")
    say("ready")
    while True:
        if gate.enter():
            witness[me] = 1
            counter[me] += 1
            witness[me] = 0
            gate.leave()


def hold(page_path: str, requests: str) -> None:
    """Enter some requests, and never leave."""
    gate = Page.open(page_path).register_gate()
    for _ in range(int(requests)):
        assert gate.enter()
    say("inside")
    sys.stdin.read()


def publish(page_path: str) -> None:
    """Publish measurements whose words all say the same, for ever."""
    page = Page.open(page_path)
    say("ready")
    number = 0
    while True:
        number += 1
        page.publish(Measurement(number, number, number, number, number))


def park(path: str, mebibytes: str) -> None:
    """Park that much random memory at the lowest priority, again and again."""
    arena = Arena(1 << 32)
    address = arena.allocate(Tag.WEIGHTS, int(mebibytes) << 20)
    randomize(address, int(mebibytes) << 20)
    say("parking")
    for version in count(1):
        Parked.create(path, arena, Tag.WEIGHTS, version=version, layout=1, nice=19).close()


def touch_released() -> None:
    """Write to released memory."""
    arena = Arena(1 << 30)
    address = arena.allocate(Tag.WEIGHTS, 1 << 20)
    arena.release(Tag.WEIGHTS)
    say("released")
    write(address, b"x")
    say("survived")


ROLES: dict[str, Callable[..., None]] = {
    "hammer": hammer,
    "hold": hold,
    "publish": publish,
    "park": park,
    "touch-released": touch_released,
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
