"""A trainer that borrows, says so, holds memory, and never gives back: `python -m tests.support.stack_trainer`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ebbtide import Group
from ebbtide.client.connection import from_home
from ebbtide_api.verbs import Lease
from ebbtide_runtime.launcher.processes import Process, read

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Trainer:
    """The trainer's process, its lease, and the memory that it holds."""

    process: Process
    lease: Lease

    @property
    def epoch(self) -> int:
        """The fencing token of its calls."""
        return self.lease.epoch


@contextmanager
def trainer(home: Path, *, ttl: float, hold_mib: int = 16) -> Iterator[Trainer]:
    """Run a trainer until it holds the group; whatever the test does to it, it is gone afterwards."""
    command = [sys.executable, "-m", "tests.support.stack_trainer", str(home), str(ttl), str(hold_mib)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            assert line, f"the trainer ended with status {child.wait(10)}"
            process = read(child.pid)
            assert process is not None
            yield Trainer(process, Lease.model_validate_json(line))
        finally:
            child.kill()


def _touched(size: int) -> bytearray:
    # Every page written, so that the memory is there to be measured; little at once, so that the lease is renewed.
    memory = bytearray(size)
    memory[::4096] = b"x" * (size // 4096)
    return memory


def main(home: Path, ttl: float, hold_mib: int) -> None:
    """Borrow, tell the lease, and wait to be killed."""
    loan = Group("actor", connection=from_home(home), holder="doomed").borrow(ttl=ttl)
    loan.__enter__()
    held = [_touched(16 << 20) for _ in range(hold_mib // 16)]
    lease = Group("actor", connection=from_home(home)).state().lease
    assert lease is not None
    print(json.dumps(lease.wire()), flush=True)
    while held is not None:
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
