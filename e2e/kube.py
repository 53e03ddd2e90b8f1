"""kubectl and helm for the tests, in the cluster of KUBECONFIG."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from .process import CommandError, run

Object = dict[str, Any]


def kubectl(*words: str, stdin: str | None = None) -> str:
    """Run kubectl and return what it prints."""
    return run("kubectl", *words, stdin=stdin, seconds=120)


def helm(*words: str) -> str:
    """Run helm and return what it prints."""
    return run("helm", *words, seconds=600)


def get(*words: str) -> Object:
    """Return an object or a list, as the API server has it."""
    answer: Object = json.loads(kubectl("get", *words, "-o", "json"))
    return answer


def exists(*words: str) -> bool:
    """Say whether an object is there."""
    return kubectl("get", *words, "--ignore-not-found", "-o", "name").strip() != ""


def apply(*objects: Object) -> None:
    """Apply objects, as a user does."""
    kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))


def until(what: str, ready: Callable[[], bool], seconds: float = 120, every: float = 0.5) -> None:
    """Wait until `ready()`; raise CommandError that names `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise CommandError(f"{what}: not so after {seconds:.0f} s")
        time.sleep(every)


def namespace(name: str, level: str = "restricted") -> Object:
    """Return a namespace that enforces a Pod Security Standard."""
    labels = {f"pod-security.kubernetes.io/{mode}": level for mode in ("enforce", "warn")}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def container(name: str, image: str, command: list[str], **more: object) -> Object:
    """Return a container that the standard `restricted` admits, with a read-only root."""
    security = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    here = {"name": name, "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    return {**here, "securityContext": security, **more}


def pod(name: str, space: str, *containers: Object, user: int = 65532, **more: object) -> Object:
    """Return a pod that runs once, as `user`, and that the standard `restricted` admits."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 5,
        "securityContext": security,
        "containers": list(containers),
    }
    meta = {"name": name, "namespace": space}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, **more}}


def finished(name: str, space: str, seconds: float = 180) -> str:
    """Wait until a pod has run; return its log. Raises CommandError with the log if it failed."""
    phase = ""

    def over() -> bool:
        nonlocal phase
        phase = get("pod", name, "-n", space)["status"].get("phase", "")
        return phase in {"Succeeded", "Failed"}

    until(f"pod {name} has run", over, seconds)
    log = kubectl("logs", name, "-n", space, "--all-containers")
    if phase == "Failed":
        raise CommandError(f"pod {name} failed:\n{log}")
    return log
