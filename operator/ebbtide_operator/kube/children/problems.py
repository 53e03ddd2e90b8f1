"""What would make a server's pods useless on a cluster, said before anything is applied: first found, first said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ebbtide_api.quantity import parse_quantity
from ebbtide_api.server import Handoff, InferenceServer

from ..names import AGENT_PORT, HANDOFF_VOLUME, PROBE_PORT
from .member import handoff_of
from .pod import has_handoff_volume, patch, template
from .shared import out_of_reach
from .site import Site
from .sizes import sizes


@dataclass(frozen=True)
class Problem:
    """A reason as one word, and a sentence with the next step."""

    reason: str
    message: str


Check = Callable[[InferenceServer], Problem | None]


def _image(server: InferenceServer) -> Problem | None:
    if server.spec.engine.image:
        return None
    return Problem("ImageMissing", "spec.engine.image is empty. Name a container image with vLLM 0.32.")


def _devices(server: InferenceServer) -> Problem | None:
    if server.spec.colocation.devices:
        return None
    return Problem(
        "DevicesMissing",
        "spec.colocation.devices is empty, so nobody can say how much memory is free."
        " Set devices.claim or devices.env for GPUs, or devices.cpu.memory.",
    )


def _port(server: InferenceServer) -> Problem | None:
    port = server.spec.engine.port
    if port not in (AGENT_PORT, PROBE_PORT):
        return None
    return Problem("PortTaken", f"spec.engine.port {port} is the agent's or the launcher's. Choose another one.")


def _handoff(server: InferenceServer) -> Problem | None:
    shared = handoff_of(server) in (Handoff.SHARED_MEMORY, Handoff.DISK)
    if not shared or has_handoff_volume(server):
        return None
    how = f"weights.handoff {server.spec.weights.handoff} needs a volume that trainer and engines share."
    return Problem(
        "HandoffVolumeMissing", f"{how} Add a volume named {HANDOFF_VOLUME} to spec.template, or use handoff Stream."
    )


def _reach(server: InferenceServer) -> Problem | None:
    if not (why := out_of_reach(server)):
        return None
    handoff = server.spec.weights.handoff
    message = f"weights.handoff {handoff} cannot work: {why}. Use a volume claim, or handoff Stream."
    return Problem("HandoffOutOfReach", message)


def _template(server: InferenceServer) -> Problem | None:
    wrong = _misshapen(patch(server))
    return Problem("TemplateInvalid", f"spec.template: {wrong}") if wrong else None


def _misshapen(found: dict[str, object]) -> str:
    spec = found.get("spec", {})
    if not isinstance(spec, dict) or not isinstance(found.get("metadata", {}), dict):
        return "metadata and spec are objects"
    for name in ("containers", "initContainers", "volumes"):
        items = spec.get(name, [])
        if not isinstance(items, list) or not all(
            isinstance(item, dict) and isinstance(item.get("name"), str) for item in items
        ):
            return f"spec.{name} is a list of objects with names"
    return ""


def _room(server: InferenceServer) -> Problem | None:
    """Parked weights are charged to the engine: a limit below them ends it, at the first sleep."""
    need, limit = sizes(server).memory, _engine_limit(server)
    if need is None or limit is None or limit >= need:
        return None
    return Problem(
        "MemoryLimitTooSmall",
        f"The engine's memory limit of {limit >> 20} MiB has no room for colocation.hostMemoryLimit"
        f" ({need >> 20} MiB). Raise the limit in spec.template, or lower hostMemoryLimit.",
    )


def _engine_limit(server: InferenceServer) -> int | None:
    found: object = template(server, Site(namespace="", image=""))
    for step in ("spec", "containers", "engine", "resources", "limits", "memory"):
        if isinstance(found, list):
            found = next((item for item in found if isinstance(item, dict) and item.get("name") == step), None)
        else:
            found = found.get(step) if isinstance(found, dict) else None
    try:
        return int(parse_quantity(str(found))) if found is not None else None
    except ValueError:
        return None  # the API server's dry run says so better


CHECKS: tuple[Check, ...] = (
    _image,
    _devices,
    _port,
    _template,  # before what looks into the template
    _handoff,
    _reach,
    _room,
)


def first_problem(server: InferenceServer) -> Problem | None:
    """Return the first thing that is wrong, or None."""
    return next((problem for check in CHECKS if (problem := check(server))), None)


def pods_refused(name: str, made: int, wanted: int) -> Problem:
    """Return the problem of a StatefulSet whose pods the API server does not take."""
    return Problem(
        "PodsRefused",
        f"StatefulSet {name} has {made} of {wanted} pods: something refuses them, often a ResourceQuota or an admission"
        f" webhook. `kubectl describe statefulset {name}` says what. Raise the quota, or ask for less.",
    )
