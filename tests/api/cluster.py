"""A real API server, kubectl as its administrator, and operators as processes under their own ServiceAccount."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.polling import eventually

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = os.environ.get("EBBTIDE_CLUSTER", "")
SYSTEM, NAMESPACE = "ebbtide-system", "models"
ASKED: set[tuple[str, str]] = set()
"""The calls that all operators made so far, by verb and resource."""


@dataclass(frozen=True)
class Kubectl:
    """kubectl as the administrator."""

    environment: dict[str, str]

    def run(self, *arguments: str, given: object = None) -> subprocess.CompletedProcess[str]:
        text = given if isinstance(given, str) or given is None else json.dumps(given)
        return subprocess.run(
            ["kubectl", *arguments], env=self.environment, input=text, text=True, capture_output=True, timeout=60
        )

    def ok(self, *arguments: str, given: object = None) -> str:
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def get(self, kind: str, name: str = "", namespace: str = NAMESPACE, **_: Any) -> Any:
        return json.loads(self.ok("get", kind, *([name] if name else []), "-n", namespace, "-o", "json"))

    def names(self, kind: str, namespace: str = NAMESPACE) -> list[str]:
        return sorted(item["metadata"]["name"] for item in self.get(kind, namespace=namespace)["items"])

    def token(self, account: str, namespace: str, *more: str) -> str:
        return self.ok("create", "token", account, "-n", namespace, *more).strip()


@contextmanager
def control_plane(folder: Path) -> Iterator[Kubectl]:
    """Start a control plane of its own, with our CRDs and the operator's rights; end it after."""
    port = free_port(17443)
    environment = os.environ | {"KUBE_LAB_DIR": str(folder / "lab"), "KUBE_LAB_PORT": str(port)}
    environment["KUBECACHEDIR"] = str(folder / "cache")
    try:
        subprocess.run([SCRIPT, "up", "--control-plane"], env=environment, check=True, timeout=200, capture_output=True)
        exports = subprocess.run([SCRIPT, "env"], env=environment, check=True, text=True, capture_output=True).stdout
        paths = dict(re.findall(r"export (\w+)=(\S+)", exports))
        paths["PATH"] = paths["PATH"].replace("$PATH", os.environ["PATH"])
        kubectl = Kubectl(environment | paths)
        for namespace in (SYSTEM, NAMESPACE):
            kubectl.ok("create", "namespace", namespace)
        kubectl.ok("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        kubectl.ok("apply", "--filename", str(Path(__file__).parent / "rbac.yaml"))
        kubectl.ok("apply", *[f"--filename={path}" for path in sorted((ROOT / "crds").glob("*.yaml"))])
        kubectl.ok("wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
        yield kubectl
    finally:
        subprocess.run([SCRIPT, "down"], env=environment, check=True, timeout=60, capture_output=True)


def free_port(first: int) -> int:
    """Return the first of three ports in a row that nobody listens on."""
    for port in range(first, first + 1000, 3):
        try:
            with socket.socket() as a, socket.socket() as b, socket.socket() as c:
                for offset, one in enumerate((a, b, c)):
                    one.bind(("0.0.0.0", port + offset))
        except OSError:
            continue
        return port
    raise AssertionError("no free ports")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class OperatorProcess:
    """An operator under its own ServiceAccount."""

    process: subprocess.Popen[bytes]
    log: Path
    gateway: int
    health: int
    killed: bool = False

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, words: str, seconds: float = 30) -> None:
        eventually(lambda: words in self.text() or self.process.poll() is not None, seconds)
        assert words in self.text(), self.text()[-4000:]

    def wait_ready(self, seconds: float = 60) -> None:
        """Wait until its gateway answers."""
        self.wait_for("ready", seconds)
        eventually(lambda: listens(self.gateway), seconds)

    def forbidden(self) -> list[str]:
        return [line for line in self.text().splitlines() if "403" in line or "orbidden" in line]

    def kill(self) -> None:
        """End it as a node that dies would."""
        self._note_asked()
        self.killed = True
        self.process.kill()
        self.process.wait(10)

    def metrics(self) -> str:
        """Return its numbers, as Prometheus reads them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/metrics", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def _note_asked(self) -> None:
        pattern = r'^ebbtide_api_requests_total{verb="(.+?)",resource="(.+?)"}'
        ASKED.update(re.findall(pattern, self.metrics(), re.MULTILINE))

    def end(self) -> int:
        """End it as a kubelet would, and return its exit status; 0 where a test killed it before."""
        if self.killed:
            return 0
        if self.process.poll() is None:
            self._note_asked()
            self.process.terminate()
        return self.process.wait(20)


def kubeconfig(kubectl: Kubectl, folder: Path, token: str) -> Path:
    """Write a kubeconfig with the operator's own token."""
    config = json.loads(kubectl.ok("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path = folder / "operator.kubeconfig"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def operator(kubectl: Kubectl, folder: Path, tls: Path, name: str = "op-1", **more: str) -> Iterator[OperatorProcess]:
    """Run an operator; end it after, and fail if anything was forbidden to it."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port(18443)
    environment = {
        **{key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ},
        "KUBECONFIG": str(kubeconfig(kubectl, folder, kubectl.token("ebbtide-operator", SYSTEM))),
        "POD_NAME": name,
        "POD_NAMESPACE": SYSTEM,
        "EBBTIDE_IMAGE": "registry.example/ebbtide:1",
        "EBBTIDE_WATCH_NAMESPACES": NAMESPACE,
        "EBBTIDE_TLS_DIR": str(tls),
        "EBBTIDE_GATEWAY_PORT": str(port),
        "EBBTIDE_HEALTH_PORT": str(port + 1),
        "EBBTIDE_SCRATCH": str(folder / "scratch"),
        **more,
    }
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide_operator.kube"], env=environment, stdout=out, stderr=out, cwd=folder
        )
    made = OperatorProcess(process, log, port, port + 1)
    try:
        yield made
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def certificate(folder: Path) -> Path:
    """Make a certificate for the gateway, as the chart would."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ebbtide"]
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command, "-addext", names, *files], check=True, capture_output=True)
    (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
    return folder


def soon(true: Any, seconds: float = 20.0) -> None:
    """Poll a real API server until `true` says so."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.2)
