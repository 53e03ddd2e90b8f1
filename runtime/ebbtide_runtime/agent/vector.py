"""The state vector: what is told of a member, and the number that grows when it changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ebbtide_api.state import KV, DeviceMemory, Inflight, Instance, Level, Phase, StateVector, Weights

from ..native import Field, Page
from .lifecycle import MIB
from .member import Member
from .receive import received

# What changes all the time, and is no news.
_NOISE = {"inflight", "idle_seconds", "devices", "host_mib", "parked_mib", "state_version"}
_LEVELS = {Weights.PARKED: Level.PARKED, Weights.DISCARDED: Level.DISCARDED}


def mib(count: int) -> float:
    """Return bytes as MiB, to the hundredth."""
    return round(count / MIB, 2)


def devices(member: Member) -> list[DeviceMemory]:
    """Return the member's devices by the last measurement; none before the first."""
    measured = member.probe.latest()
    if measured is None:
        return []
    total, used = member.config.device_budget, measured.used_bytes
    device = DeviceMemory(
        id=member.config.device_id, used_mib=mib(used), free_mib=mib(max(0, total - used)), total_mib=mib(total)
    )
    return [device]


def idle_seconds(page: Page) -> float | None:
    """Return how long nobody has been inside; None when nobody could be yet."""
    inside, left = page.inflight(), page.get(Field.LAST_REQUEST)
    if left == 0:
        return None
    return 0.0 if inside else round(max(0, time.monotonic_ns() - left) / 1e9, 3)


def _level(member: Member) -> Level | None:
    asleep = member.ranks.kv is KV.DISCARDED and member.phase in (Phase.ASLEEP, Phase.SUSPENDING)
    return _LEVELS.get(member.ranks.weights) if asleep else None


def _limit(member: Member) -> float | None:
    limit = member.config.host_memory_limit
    return None if limit is None else mib(limit)


def _at_the_gate(page: Page) -> dict[str, Any]:
    admission = page.admission
    return {
        "admission": admission,
        "inflight": Inflight(running=page.inflight()),
        "idle_seconds": idle_seconds(page),
        "wakes": page.get(Field.WAKES) == 1,
        "hold_seconds": page.get(Field.HOLD_MS) / 1000,
        # While the gate is open, a knock is an old one.
        "requested": page.get(Field.KNOCK) > 0 and not admission,
    }


def build(member: Member, operation: str | None, state_version: int) -> StateVector:
    """Return everything known of a member."""
    page, memory, config = member.page, member.store.memory, member.config
    ranks = member.observed.ranks if member.observed else []
    measured = member.probe.latest()
    return StateVector(
        **_at_the_gate(page),
        name=config.name,
        server=config.server,
        group=config.group,
        phase=member.phase,
        weights=member.ranks.weights,
        kv=member.ranks.kv,
        weight_version=member.ranks.version,
        pending_version=member.ranks.pending,
        committed_version=memory.committed.version,
        cache_epoch=page.get(Field.CACHE_EPOCH),
        level=_level(member),
        epoch=memory.epoch,
        leader=memory.leader,
        instance=Instance(uid=config.uid, pid=page.get(Field.ENGINE_PID), start_time=page.get(Field.ENGINE_START)),
        boot=page.get(Field.BOOT),
        operation=operation,
        devices=devices(member),
        baseline_mib=mib(page.get(Field.BASELINE)) or None,
        residual_mib=mib(memory.residual) if memory.residual else None,
        weights_mib=sum(rank.weights_mib for rank in ranks),
        kv_mib=sum(rank.kv_mib for rank in ranks),
        parked_mib=sum(rank.parked.mib for rank in ranks if rank.parked),
        host_mib=mib(measured.host_bytes) if measured else 0.0,
        host_limit_mib=_limit(member),
        received=received(Path(config.received_dir)),
        kv_blocks=member.observed.kv_blocks if member.observed else 0,
        cycle=memory.cycle,
        since=member.since,
        state_version=state_version,
        url=f"http://{config.host}:{config.data_port}",
        last_error=member.last_error,
    )


class Board:
    """The last told vector, and those who wait for the next. Versions grow over restarts of the agent too."""

    def __init__(self, member: Member, operation: Callable[[], str | None]) -> None:
        self._member = member
        self._operation = operation
        self._version = time.time_ns() // 1_000_000
        self._told = ""
        self._news = asyncio.Event()

    def refresh(self) -> StateVector:
        """Return the vector as it is now, with a new version if there is news in it."""
        vector = build(self._member, self._operation(), self._version)
        told = vector.model_dump_json(exclude=_NOISE)
        if told != self._told:
            self._told = told
            self._version += 1
            vector = vector.model_copy(update={"state_version": self._version})
            self._news.set()
            self._news = asyncio.Event()
        return vector

    async def after(self, version: int, seconds: float) -> StateVector:
        """Return the vector once its version is above `version`, or as it is after `seconds`."""
        due = time.monotonic() + seconds
        while True:
            vector = self.refresh()
            left = due - time.monotonic()
            if vector.state_version > version or left <= 0:
                return vector
            try:
                await asyncio.wait_for(self._news.wait(), left)
            except TimeoutError:
                continue
