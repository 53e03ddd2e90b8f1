"""What sending weights costs: one file of 183 MiB through the gateway, to one agent and to two.

Operator and agents are real processes on this machine, the engines are scripted. Beside it, in the same run, what the
same bytes take into a shared folder (`SharedMemory`). All of it is the whole `publish`: checksums, sending, naming.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebbtide import Group

from tests.support.streaming import StreamHouse, weights

from .report import Report, Row, row

WORKLOAD = "183 MiB"
MIB = 183
SHARED = Path("/dev/shm")


def run(*, quick: bool = False) -> Report:
    """Publish some versions each way, the ways in turn."""
    rounds = 2 if quick else 7
    report = Report("Weights, from the trainer to every member")
    tensors = weights(MIB)
    with tempfile.TemporaryDirectory() as folder, _houses(Path(folder), tensors) as houses:
        samples: dict[str, list[float]] = {name: [] for name in houses}
        for version in range(1, rounds + 1):
            for name, house in houses.items():
                samples[name].append(_publish(house.group, tensors, version))
        report.add(_rows(samples))
    return report


@contextmanager
def _houses(folder: Path, tensors: dict[str, Any]) -> Iterator[dict[str, StreamHouse]]:
    kinds: dict[str, dict[str, Any]] = {
        "Stream, 1 agent": {"replicas": 1, "engine": {"port": 22000}},
        "Stream, 2 agents": {"replicas": 2, "engine": {"port": 22100}},
        "SharedMemory": {"replicas": 2, "engine": {"port": 22200}, "weights": {"handoff": "SharedMemory"}},
    }
    made: dict[str, StreamHouse] = {}
    with tempfile.TemporaryDirectory(dir=SHARED) as memory:
        try:
            for number, (name, spec) in enumerate(kinds.items()):
                (folder / str(number)).mkdir()
                made[name] = StreamHouse(folder / str(number), tensors, memory=Path(memory, str(number)), **spec)
                made[name].start()
                made[name].serving(spec["replicas"])
            yield made
        finally:
            for house in made.values():
                house.close()


def _publish(group: Group, tensors: dict[str, Any], version: int) -> float:
    with group, group.borrow() as loan:
        began = time.perf_counter()
        loan.publish(tensors, version=version)
        return time.perf_counter() - began


def _rows(samples: dict[str, list[float]]) -> list[Row]:
    found = []
    for name, seconds in samples.items():
        found.append(row(WORKLOAD, name, "publish", "s", seconds))
        found.append(row(WORKLOAD, name, "rate", "MiB/s", [MIB / each for each in seconds]))
    return found
