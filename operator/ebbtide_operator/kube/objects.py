"""The few facts that we keep of other objects, read from what the API server says. Everything else is dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cache import version_number
from .names import DIGEST, GROUP, SERVER, ordinal_of

Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Pod:
    """A member's pod. `trouble` is why it does not run, in a sentence."""

    namespace: str
    name: str
    uid: str
    version: int
    server: str
    group: str
    ordinal: int
    ip: str
    revision: str
    ready: bool
    deleting: bool
    trouble: str
    owner: str = ""
    """The UID of its StatefulSet."""

    @property
    def key(self) -> Key:
        """Its namespace and name."""
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Child:
    """An object that we applied. `mark` moves when its spec does; `revision` is a StatefulSet's newest."""

    namespace: str
    kind: str
    name: str
    uid: str
    version: int
    owner: str
    digest: str
    mark: str
    replicas: int = 0
    made: int = 0
    revision: str = ""
    settled: bool = True

    @property
    def key(self) -> tuple[str, str, str]:
        """Its namespace, kind and name."""
        return self.namespace, self.kind, self.name


def dig(found: object, *path: str) -> object:
    """Return what lies at a path of an object, or None."""
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def text(found: object, *path: str) -> str:
    """Return the string at a path, or an empty one."""
    value = dig(found, *path)
    return value if isinstance(value, str) else ""


def number(found: object, *path: str) -> int:
    """Return the integer at a path, or 0."""
    value = dig(found, *path)
    return value if isinstance(value, int) else 0


def items(found: object, *path: str) -> list[Mapping[str, object]]:
    """Return the objects of the list at a path."""
    value = dig(found, *path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def read_pod(raw: Mapping[str, object]) -> Pod | None:
    """Return a member's pod; None when it is none of ours, whatever its labels say."""
    labels = dig(raw, "metadata", "labels")
    server, name = text(labels, SERVER), text(raw, "metadata", "name")
    ordinal = ordinal_of(name, server)
    if ordinal is None:
        return None
    conditions = {text(one, "type"): text(one, "status") for one in items(raw, "status", "conditions")}
    return Pod(
        namespace=text(raw, "metadata", "namespace"),
        name=name,
        uid=text(raw, "metadata", "uid"),
        version=version_number(text(raw, "metadata", "resourceVersion")),
        server=server,
        group=text(labels, GROUP),
        ordinal=ordinal,
        ip=text(raw, "status", "podIP"),
        revision=text(labels, "controller-revision-hash"),
        ready=conditions.get("Ready") == "True",
        deleting=bool(text(raw, "metadata", "deletionTimestamp")),
        trouble=trouble_of(raw),
        owner=_controller(raw),
    )


def read_child(raw: Mapping[str, object], kind: str) -> Child:
    """Return an object that carries our labels."""
    generation, version = number(raw, "metadata", "generation"), text(raw, "metadata", "resourceVersion")
    return Child(
        namespace=text(raw, "metadata", "namespace"),
        kind=kind,
        name=text(raw, "metadata", "name"),
        uid=text(raw, "metadata", "uid"),
        version=version_number(version),
        owner=_controller(raw),
        digest=text(raw, "metadata", "annotations", DIGEST),
        # A status moves the version too; only what has no generation has no status that moves by itself.
        mark=str(generation or version),
        replicas=number(raw, "spec", "replicas") if kind == "StatefulSet" else 0,
        made=number(raw, "status", "replicas"),
        revision=text(raw, "status", "updateRevision"),
        settled=number(raw, "status", "observedGeneration") >= generation,
    )


def _controller(raw: Mapping[str, object]) -> str:
    owners = items(raw, "metadata", "ownerReferences")
    return next((text(one, "uid") for one in owners if one.get("controller") is True), "")


# Why a pod does not run

_WAITS = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its image is not on the node, and imagePullPolicy is Never",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container cannot be set up",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "it ends again and again",
}
_ENDS = {
    64: "what it was told was refused",
    71: "the engine died",
    78: "its memory is damaged",
    126: "the image has no python3 that can be run",
    127: "the image has no python3",
    128: "its program cannot be started",
    137: "it was killed, by its memory limit or by its node",
}
_LONGEST = 600


def trouble_of(raw: Mapping[str, object]) -> str:
    """Return why a pod does not run and what to look at; empty while nothing is wrong with it."""
    if text(raw, "metadata", "deletionTimestamp"):
        return ""
    if text(raw, "status", "phase") == "Failed":
        return _sentence(f"it failed ({text(raw, 'status', 'reason') or 'Failed'})", text(raw, "status", "message"))
    for condition in items(raw, "status", "conditions") if text(raw, "status", "phase") == "Pending" else ():
        if text(condition, "type") == "PodScheduled" and text(condition, "reason") == "Unschedulable":
            return _sentence("no node takes it", text(condition, "message"))
    containers = items(raw, "status", "initContainerStatuses") + items(raw, "status", "containerStatuses")
    name = text(raw, "metadata", "name")
    return next((f"{why} {_look(name, one)}" for one in containers if (why := _container_trouble(one))), "")


def _look(pod: str, status: Mapping[str, object]) -> str:
    if text(status, "state", "waiting", "reason") == "CrashLoopBackOff":
        return f"See `kubectl logs {pod} -c {text(status, 'name')} --previous`."
    return f"See `kubectl describe pod {pod}`."


def _container_trouble(status: Mapping[str, object]) -> str:
    reason = text(status, "state", "waiting", "reason")
    if reason not in _WAITS:
        return ""
    said = text(status, "state", "waiting", "message")
    ended = dig(status, "lastState", "terminated")
    if reason == "CrashLoopBackOff" and isinstance(ended, Mapping):
        code = number(ended, "exitCode")
        why = _ENDS.get(code, "out of memory" if text(ended, "reason") == "OOMKilled" else f"exit status {code}")
        said = f"{why}. {text(ended, 'message').strip()}"
    return _sentence(f"container {text(status, 'name')}: {_WAITS[reason]}", said).rstrip(".") + "."


def _sentence(what: str, why: str) -> str:
    # Lines that only underline something in the line before say nothing when they are all in one.
    said = " ".join(word for word in why.split() if word.strip("^~"))
    said = said if len(said) <= _LONGEST else f"...{said[-_LONGEST:]}"
    return f"{what}: {said}" if said else what
