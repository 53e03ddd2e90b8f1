"""What plans are told of servers on a cluster, and which of a spec's fields a cluster does not honour yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ebbtide_api.server import Handoff, InferenceServer
from ebbtide_api.supported import unsupported

from ebbtide_operator.handoffs import differ
from ebbtide_operator.plan import ServerView
from ebbtide_operator.specs import MIB
from ebbtide_operator.specs import view as local_view

from .children import Problem, first_problem
from .children.member import device_of, handoff_of
from .children.sizes import cpu_budget

HONOURED = frozenset(
    {
        "metadata.namespace",
        "spec.awakeReplicas",
        "spec.colocation.devices.claim",
        "spec.engine.image",
        "spec.model.revision",
        "spec.model.source",
        "spec.parallelism.pipeline",
        "spec.template",
        "spec.weights.handoff",
    }
)
"""What local mode refuses and a cluster honours."""
HANDOFF_MIXED = "HandoffMixed"
"""The reason of a server that takes weights in another way than its group."""


def server_view(server: InferenceServer) -> ServerView:
    """Return a server as plans see it. On the CPU each pod is a device: its memory limit has room for the budget."""
    budget = cpu_budget(server)
    return replace(
        local_view(server), device=device_of(server), budget_mib=(budget or 0) / MIB, apart=budget is not None
    )


def problem_of(server: InferenceServer) -> Problem | None:
    """Return why a spec cannot be carried out on a cluster, or None."""
    refused = [(path, why) for path, why in unsupported(server) if path not in HONOURED]
    if refused:
        return Problem("NotYetSupported", "; ".join(f"{path}: {why}" for path, why in refused) + ".")
    return first_problem(server)


def oldest_taker(group: Iterable[InferenceServer]) -> InferenceServer | None:
    """Return the oldest server of a group that takes weights: it decides how they come in."""
    return min((server for server in group if handoff_of(server) is not Handoff.NONE), key=_age, default=None)


def mixed_handoff(server: InferenceServer, oldest: InferenceServer | None) -> Problem | None:
    """Return why a server cannot be with its group: it takes weights in another way than the one that decides."""
    if oldest is None or not (why := differ({each.name: handoff_of(each) for each in (oldest, server)})):
        return None
    advice = "Set spec.weights.handoff to the same for both, or give one of them a group of its own."
    return Problem(HANDOFF_MIXED, f"{why}, and a group's weights come in one way. {advice}")


def _age(server: InferenceServer) -> tuple[str, str]:
    return server.metadata.creation_timestamp or "", server.name


def effective(server: InferenceServer, running: int | None, *, held: bool) -> InferenceServer:
    """Return a server as it may be carried out now: while its group is lent, no member comes or goes."""
    if not held or not running or running == server.spec.replicas:
        return server
    return server.model_copy(update={"spec": server.spec.model_copy(update={"replicas": running})})


def highest(servers: Iterable[InferenceServer]) -> tuple[int, str]:
    """Return the highest epoch that the statuses of a group's servers tell, and the owner that goes with it."""
    told = [(server.status.epoch, server.status.owner) for server in servers if server.status]
    return max(told, default=(0, ""))
