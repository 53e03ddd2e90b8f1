"""Pretended members: pods whose address is this machine's, with an agent's interface behind TLS, enrolled as usual."""

import asyncio
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn

from tests.api.cluster import NAMESPACE, Kubectl
from tests.support.fake_agent import FakeAgent
from tests.support.fake_member import FakeMember

PORT = 7412


@dataclass
class Member:
    """A pod's agent."""

    fake: FakeMember
    agent: FakeAgent
    address: str
    certificate: str
    headers: list[dict[str, str]]


class Recorder:
    """Notes the headers of every request before the agent answers it."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self.headers: list[dict[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        await self.agent(scope, receive, send)


@contextmanager
def member(kubectl: Kubectl, pod: str, address: str, folder: Path, group: str) -> Iterator[Member]:
    """Be the kubelet and the agent of a pod: give it an address, and answer there."""
    found = kubectl.get("pod", pod)
    server = pod.rpartition("-")[0]
    fake = FakeMember(pod, server, group, found["metadata"]["uid"])
    agent = FakeAgent(fake)
    recorder = Recorder(agent)
    key, certificate = self_signed(folder, pod)
    config = uvicorn.Config(
        recorder,
        host=address,
        port=PORT,
        log_level="warning",
        lifespan="off",
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    server_ = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server_.serve()), daemon=True)
    thread.start()
    while not server_.started and thread.is_alive():
        time.sleep(0.01)
    run(kubectl, pod, address)
    try:
        yield Member(fake, agent, address, certificate.read_text(), recorder.headers)
    finally:
        server_.should_exit = True
        thread.join(10)


def run(kubectl: Kubectl, pod: str, address: str) -> None:
    """Say, as a kubelet would, that a pod runs at an address."""
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    kubectl.ok("patch", "pod", pod, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a key and a certificate of its own, as an agent does at boot."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, "-subj", f"/CN={name}", *files], check=True, capture_output=True)
    return key, certificate


def client(tls: Path, port: int, token: str) -> httpx2.Client:
    """Return a client of the gateway that trusts its certificate."""
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.Client(base_url=f"https://127.0.0.1:{port}", headers=headers, verify=context, timeout=30)


def pod_token(kubectl: Kubectl, pod: str) -> str:
    """Return the token that the kubelet would project into a pod."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}", "--audience=ebbtide-gateway"]
    return kubectl.token("ebbtide-engine", NAMESPACE, *bound)
