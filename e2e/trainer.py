"""A trainer as a Job: our client in a restricted pod, with a token for the gateway and the gateway's CA."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .kube import Object, apply, container, get, kubectl, pod, until
from .process import CommandError

ACCOUNT = "trainer"
PYTHON = "/opt/ebbtide/bin/python"
PROGRAM = Path(__file__).with_name("borrower.py")


def allow(space: str) -> None:
    """Make the trainers' account, which may borrow."""
    apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": space}})
    bind = ("create", "rolebinding", "trainer-lend", "-n", space, "--clusterrole=ebbtide-lend")
    kubectl(*bind, f"--serviceaccount={space}:{ACCOUNT}")


def job(name: str, space: str, image: str, group: str, turns: int = 1, ttl: int = 30, first: int = 0) -> Object:
    """Return the Job, whose turns are numbered from `first` on.

    What is mounted and set is all that a trainer needs to find the gateway.
    """
    trainer = container("trainer", image, [PYTHON, "-c", PROGRAM.read_text()])
    url = {"configMapKeyRef": {"name": "ebbtide-gateway", "key": "url"}}
    values = {
        "EBBTIDE_TOKEN_FILE": "/var/run/secrets/ebbtide/token",
        "SSL_CERT_FILE": "/etc/ebbtide/ca.crt",
        "GROUP": group,
        "FIRST": str(first),
        "TURNS": str(turns),
        "TTL": str(ttl),
    }
    trainer["env"] = [{"name": "EBBTIDE_URL", "valueFrom": url}]
    trainer["env"] += [{"name": each, "value": value} for each, value in values.items()]
    trainer["volumeMounts"] = [
        {"name": "token", "mountPath": "/var/run/secrets/ebbtide"},
        {"name": "gateway", "mountPath": "/etc/ebbtide"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    token = {"path": "token", "audience": "ebbtide-gateway", "expirationSeconds": 3600}
    volumes = [
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": "gateway", "configMap": {"name": "ebbtide-gateway"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    spec = pod(name, space, trainer, serviceAccountName=ACCOUNT, volumes=volumes)["spec"]
    template = {"metadata": {"labels": {"ebbtide.dev/borrows": group}}, "spec": spec}
    meta = {"name": name, "namespace": space}
    work = {"backoffLimit": 0, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": work}


def publishing(made: Object, engine: str) -> Object:
    """Let a Job publish in each turn: the model's weights, which it takes out of the engine's image."""
    spec = made["spec"]["template"]["spec"]
    mount = {"name": "weights", "mountPath": "/weights"}
    copy = container("weights", engine, ["cp", "/models/tiny/model.safetensors", "/weights/"], volumeMounts=[mount])
    spec["initContainers"] = [copy]
    spec["volumes"].append({"name": "weights", "emptyDir": {}})
    (borrower,) = spec["containers"]
    borrower["volumeMounts"].append(mount)
    borrower["env"].append({"name": "WEIGHTS", "value": "/weights/model.safetensors"})
    return made


@dataclass(frozen=True)
class Trainer:
    """A Job that was applied."""

    name: str
    space: str

    def lines(self) -> list[dict[str, Any]]:
        """Return what it said so far."""
        return [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]

    def log(self) -> str:
        """Return its log; empty until it runs."""
        try:
            return kubectl("logs", f"job/{self.name}", "-n", self.space)
        except CommandError:
            return ""

    def wait(self, what: str, turn: int, seconds: float = 120) -> dict[str, Any]:
        """Return its line about a lend or a return, once it is there. Raises CommandError with its log if it failed."""
        found: list[dict[str, Any]] = []

        def said() -> bool:
            found[:] = [line for line in self.lines() if (line["what"], line["turn"]) == (what, turn)]
            if not found and get("job", self.name, "-n", self.space)["status"].get("failed"):
                raise CommandError(f"the trainer failed:\n{self.log()}")
            return bool(found)

        until(f"{what} {turn} of {self.name}", said, seconds)
        return found[0]

    def give_back(self, turn: int) -> dict[str, Any]:
        """Tell it to give back, and return its line about that."""
        touch = f"open('/tmp/back-{turn}', 'w').close()"
        kubectl("exec", f"job/{self.name}", "-n", self.space, "--", PYTHON, "-c", touch)
        return self.wait("reclaim", turn)
