"""What several verbs need: the state as it is now, host memory, and where weights come from."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import EngineState

from ...native import Measurement
from .. import cgroup
from ..lifecycle import host_room
from ..member import Member

# A host always keeps this much: a parked copy must not be what the kernel ends processes for.
RESERVE = 256 << 20
# And so does a container, whose processes grow a little all the time.
GROUP_RESERVE = 32 << 20


async def fresh_state(member: Member) -> EngineState:
    """Ask the engine for its state. Raises UNREACHABLE, or FaultError when its ranks disagree."""
    answer = await member.engine.state()
    if not isinstance(answer, EngineState):
        raise EbbtideError(ErrorCode.UNREACHABLE, f"the engine does not say its state: {answer.message}")
    member.see(answer)
    return answer


async def fresh_measurement(member: Member) -> Measurement:
    """Measure now. Raises UNREACHABLE when the launcher does not answer."""
    measured = await member.probe.fresh()
    if measured is None:
        seconds = member.settings.measure_s
        raise EbbtideError(ErrorCode.UNREACHABLE, f"the launcher did not measure within {seconds} s")
    return measured


async def recent_measurement(member: Member) -> Measurement:
    """Return the last measurement while it is recent, else measure now. Raises UNREACHABLE."""
    # One that began before the member came into its phase may have seen half of a wake.
    return member.probe.recent(member.settings.recent_s, member.entered_ns) or await fresh_measurement(member)


def available(folder: Path, writer: int) -> int:
    """Return the bytes of memory that a process can take in a memory-backed folder, less a reserve."""
    place, left = os.statvfs(folder), cgroup.room(writer)
    there = min(psutil.virtual_memory().available, place.f_bavail * place.f_frsize) - RESERVE
    return max(0, there if left is None else min(there, left - GROUP_RESERVE))


def room(member: Member, held: int) -> int:
    """Return the host bytes that the agent may still take, when the member holds `held`."""
    return _room(member, held, os.getpid())


def parking_room(member: Member, held: int) -> int:
    """Return the same for the engine, whose worker writes parked weights: in a pod, that is another container."""
    return _room(member, held, member.identity.pid)


def _room(member: Member, held: int, writer: int) -> int:
    return host_room(member.config.host_memory_limit, held, available(Path(member.config.memory), writer))


def weights_bytes(state: EngineState) -> int:
    """Return the bytes of all ranks' weights."""
    return int(sum(rank.weights_mib for rank in state.ranks) * (1 << 20))


def source(member: Member) -> tuple[str, int] | None:
    """Return where the committed weights can be loaded from, and their version; None when their copy is gone."""
    committed = member.store.memory.committed
    if committed.version == 0:
        return member.config.model, 0
    return (committed.path, committed.version) if Path(committed.path).is_dir() else None


def source_lost(member: Member) -> EbbtideError:
    """Return the error of committed weights whose copy is gone, say after a reboot of the machine."""
    version = member.store.memory.committed.version
    return EbbtideError(
        ErrorCode.WEIGHTS_NOT_COMMITTED,
        f"the member's copy of version {version} is gone",
        next_action=f"Publish the weights again, as a version above {version}.",
        version=version,
    )
