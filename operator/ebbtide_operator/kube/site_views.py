"""What plans are told of servers on a cluster, and which of a spec's fields a cluster does not honour yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ebbtide_api.server import InferenceServer
from ebbtide_api.supported import unsupported

from ebbtide_operator.plan import ServerView
from ebbtide_operator.specs import MIB
from ebbtide_operator.specs import view as local_view

from .children import Problem, first_problem
from .children.member import device_of
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


def server_view(server: InferenceServer) -> ServerView:
    """Return a server as plans see it."""
    return replace(local_view(server), device=device_of(server), budget_mib=(cpu_budget(server) or 0) / MIB)


def problem_of(server: InferenceServer) -> Problem | None:
    """Return why a spec cannot be carried out on a cluster, or None."""
    refused = [(path, why) for path, why in unsupported(server) if path not in HONOURED]
    if refused:
        return Problem("NotYetSupported", "; ".join(f"{path}: {why}" for path, why in refused) + ".")
    return first_problem(server)


def effective(server: InferenceServer, running: int | None, *, held: bool) -> InferenceServer:
    """Return a server as it may be carried out now: while its group is lent, no member comes or goes."""
    if not held or not running or running == server.spec.replicas:
        return server
    return server.model_copy(update={"spec": server.spec.model_copy(update={"replicas": running})})


def highest(servers: Iterable[InferenceServer]) -> tuple[int, str]:
    """Return the highest epoch that the statuses of a group's servers tell, and the owner that goes with it."""
    told = [(server.status.epoch, server.status.owner) for server in servers if server.status]
    return max(told, default=(0, ""))
