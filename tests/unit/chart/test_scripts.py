"""The two scripts that the chart runs in pods, against an API server of ours with the chart's own certificate."""

import base64
import json
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .rendering import CHART, Object, objects, one, pods

SERVERS = re.compile(r"^/apis/ebbtide.dev/v1alpha1(?:/namespaces/([^/]+))?/inferenceservers(?:/([^/]+))?$")
PODS = re.compile(r"^/api/v1(?:/namespaces/([^/]+))?/pods\?labelSelector=app.kubernetes.io%2Fname%3Debbtide-engine$")


@dataclass
class World:
    """What the API server has: names of servers and pods by namespace, and what was asked of it."""

    servers: dict[str, list[str]] = field(default_factory=dict)
    pods: dict[str, list[str]] = field(default_factory=dict)
    pods_last: int = 0
    installed: bool = True
    kinds: tuple[str, ...] = ("InferenceServer", "KVCachePolicy")
    healthy: bool = True
    calls: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def answer(self, method: str, path: str) -> tuple[int, Object]:
        self.calls.append(f"{method} {path}")
        if path == "/health":
            return (200 if self.healthy else 503), {}
        if path == "/apis/ebbtide.dev/v1alpha1":
            return 200, {"resources": [{"kind": kind} for kind in self.kinds]}
        if (match := SERVERS.match(path)) and self.installed:
            return self.serve(method, match[1], match[2])
        if match := PODS.match(path):
            self.pods_last -= 1
            return 200, listed(self.pods if self.pods_last >= 0 else {}, match[1])
        return 404, {}

    def serve(self, method: str, namespace: str | None, name: str | None) -> tuple[int, Object]:
        if method == "GET":
            return 200, listed(self.servers, namespace)
        assert namespace
        assert name
        self.servers[namespace].remove(name)
        return 200, {}


def listed(found: dict[str, list[str]], namespace: str | None) -> Object:
    pairs = [(place, name) for place, names in found.items() for name in names if namespace in {None, place}]
    return {"items": [{"metadata": {"namespace": place, "name": name}} for place, name in pairs]}


@dataclass(frozen=True)
class Lab:
    world: World
    port: int
    account: Path

    def run(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}
        text = (CHART / "files" / script).read_text()
        # As the pod does it: by -c, with a bare environment.
        command = [sys.executable, "-I", "-c", text, *words]
        env |= {"EBBTIDE_ACCOUNT_DIR": str(self.account)}
        return subprocess.run(command, env=env, text=True, capture_output=True, timeout=60)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    world = World()
    for name, text in one("Secret", "ebbtide-gateway-tls", objects())["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    (tmp_path / "token").write_text("secret-token")

    class Answer(BaseHTTPRequestHandler):
        def reply(self) -> None:
            world.tokens.add(self.headers.get("Authorization", ""))
            code, body = world.answer(self.command, self.path)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_GET = do_DELETE = reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Lab(world, server.server_port, tmp_path)
    server.shutdown()
    server.server_close()


def test_the_hook_deletes_the_servers_of_its_namespaces(lab: Lab) -> None:
    lab.world.servers = {"a": ["chat", "draft"], "b": ["big"], "other": ["theirs"]}
    done = lab.run("uninstall.py", "30", "a", "b")
    assert done.returncode == 0, done.stderr
    assert lab.world.servers == {"a": [], "b": [], "other": ["theirs"]}
    assert "no InferenceServer is left" in done.stdout
    assert lab.world.tokens == {"Bearer secret-token"}


def test_the_hook_cluster_wide_deletes_all(lab: Lab) -> None:
    lab.world.servers = {"a": ["chat"], "b": ["big"]}
    assert lab.run("uninstall.py", "30").returncode == 0
    assert lab.world.servers == {"a": [], "b": []}


def test_the_hook_waits_for_the_pods(lab: Lab) -> None:
    lab.world.pods, lab.world.pods_last = {"a": ["chat-0"]}, 2
    done = lab.run("uninstall.py", "30", "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("waiting for pod a/chat-0") == 2


def test_the_hook_gives_up_with_names_and_a_way_out(lab: Lab) -> None:
    lab.world.pods, lab.world.pods_last = {"a": ["chat-0"]}, 99
    done = lab.run("uninstall.py", "0", "a")
    assert done.returncode == 1
    assert "pod a/chat-0" in done.stderr
    assert "--no-hooks" in done.stderr


def test_the_hook_is_content_without_crds(lab: Lab) -> None:
    lab.world.installed = False
    assert lab.run("uninstall.py", "30", "a").returncode == 0


def test_the_test_passes_when_all_is_there(lab: Lab) -> None:
    done = lab.run("check.py", f"https://localhost:{lab.port}", str(lab.account / "ca.crt"))
    assert done.returncode == 0, done.stderr
    assert "GET /health" in lab.world.calls


def test_the_test_never_shows_the_gateway_its_token(lab: Lab) -> None:
    lab.world.kinds = ()
    lab.run("check.py", f"https://localhost:{lab.port}", str(lab.account / "ca.crt"))
    assert lab.world.calls == ["GET /health", "GET /apis/ebbtide.dev/v1alpha1"]
    assert lab.world.tokens == {"", "Bearer secret-token"}


def test_the_test_names_a_kind_that_is_not_served(lab: Lab) -> None:
    lab.world.kinds = ("InferenceServer",)
    done = lab.run("check.py", f"https://localhost:{lab.port}", str(lab.account / "ca.crt"))
    assert done.returncode == 1
    assert "does not serve KVCachePolicy" in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.2", "ip6-localhost"])
def test_the_test_refuses_a_gateway_of_another_name(lab: Lab, host: str) -> None:
    done = lab.run("check.py", f"https://{host}:{lab.port}", str(lab.account / "ca.crt"))
    assert done.returncode == 1
    assert "GET /health" not in lab.world.calls


def test_the_test_fails_when_the_gateway_is_ill(lab: Lab) -> None:
    lab.world.healthy = False
    assert lab.run("check.py", f"https://localhost:{lab.port}", str(lab.account / "ca.crt")).returncode == 1


def test_the_pods_run_these_scripts() -> None:
    found = pods(objects({"watchNamespaces": ["a", "b"]}))
    hook = found["Job/ebbtide-uninstall"]["containers"][0]["args"]
    assert hook == [(CHART / "files" / "uninstall.py").read_text(), "300", "a", "b"]
    test = found["Pod/ebbtide-test"]["containers"][0]["args"]
    assert test == [
        (CHART / "files" / "check.py").read_text(),
        "https://ebbtide-gateway.home.svc",
        "/etc/ebbtide/gateway/ca.crt",
    ]


def test_the_hook_cluster_wide_names_no_namespace() -> None:
    args = pods(objects({"clusterWide": True}))["Job/ebbtide-uninstall"]["containers"][0]["args"]
    assert args[1:] == ["300"]
