"""How much memory an engine pod's containers and volumes may take, computed from the spec. Bytes throughout.

Pages of a memory-backed volume are charged to the container that touches them first, and stay charged to the pod when
that container restarts. The engine's worker writes parked weights, the agent writes the member's own copies of
published weights; either may come to hold all of `hostMemoryLimit`, so both limits count it whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebbtide_api.quantity import format_quantity
from ebbtide_api.server import InferenceServer

MIB = 1 << 20
PAGE_ROOM = 16 * MIB
"""The control page, manifests and folders beside the weights."""
SHM_PER_RANK = 512 * MIB
"""Shared memory of one rank: ten message queues of 16 MiB, and what the collectives of a rank map."""
AGENT_LIMIT = 384 * MIB
AGENT_REQUEST = 96 * MIB
ENGINE_RESIDUE = 1024 * MIB
"""What an engine's processes hold while its weights and KV cache are released."""


@dataclass(frozen=True)
class Sizes:
    """None means without a limit."""

    memory: int | None
    shm: int | None
    agent_limit: int | None
    engine_limit: int | None
    engine_request: int


def sizes(server: InferenceServer) -> Sizes:
    """Return the sizes of a member's pod."""
    host, budget, shm = host_limit(server), cpu_budget(server), _shm(server)
    memory = None if host is None else host + PAGE_ROOM
    return Sizes(
        memory=memory,
        shm=shm,
        agent_limit=None if memory is None else AGENT_LIMIT + memory,
        engine_limit=None if memory is None or budget is None else budget + memory + (shm or 0),
        # What a lent engine keeps. Asking for more would keep the trainer's pod off the node that it shares.
        engine_request=ENGINE_RESIDUE + (memory or 0),
    )


def host_limit(server: InferenceServer) -> int | None:
    """Return what parked weights and copies of published weights may take, if the spec says."""
    limit = server.spec.colocation.host_memory_limit
    return limit.bytes if limit else None


def cpu_budget(server: InferenceServer) -> int | None:
    """Return the declared size of a CPU engine's device; None on GPUs."""
    devices = server.spec.colocation.devices
    return devices.cpu.memory.bytes if devices and devices.cpu else None


def _shm(server: InferenceServer) -> int | None:
    ranks = server.spec.parallelism.tensor * server.spec.parallelism.pipeline
    # On the CPU a single rank is a process of its own, too.
    return SHM_PER_RANK * ranks if ranks > 1 or cpu_budget(server) is not None else None


def quantity(value: int) -> str:
    """Return bytes as Kubernetes writes them, canonical: another spelling would look like a change."""
    return format_quantity(value)
