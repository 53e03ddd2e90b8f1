"""The operator at scale, on a real API server without nodes: many servers at once, then nothing, then single events.

Set EBBTIDE_CLUSTER. A first pass is over when every server has a status and a StatefulSet with its Service, ConfigMap,
NetworkPolicy and budget. Limits are in operator_limits.json: figures of a two-core machine with headroom, for CI.
"""

from __future__ import annotations

import json
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.api.cluster import NAMESPACE, SCRIPT, Kubectl, OperatorProcess, certificate, control_plane, operator
from tests.api.given import server

from .report import Goal, Report, Row, at_most, row

WORKLOAD = "operator"
LIMITS = Path(__file__).with_name("operator_limits.json")
IDLE_S = 30
SERVERS = f"/apis/ebbtide.dev/v1alpha1/namespaces/{NAMESPACE}/inferenceservers"
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets"


@dataclass
class Cluster:
    """The API server as its administrator sees it, over plain HTTP calls: kubectl would be the bottleneck."""

    http: httpx2.Client

    def create(self, count: int) -> None:
        """Create servers `s-0` and on."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(self._create, range(count)))

    def _create(self, number: int) -> None:
        self.http.post(SERVERS, json=server(f"s-{number}")).raise_for_status()

    def done(self, count: int) -> bool:
        """Say whether every server has what a first pass gives it."""
        if self._count(SETS) < count:
            return False
        return sum(bool(one.get("status", {}).get("conditions")) for one in self._list(SERVERS)) >= count

    def _count(self, path: str) -> int:
        page = self.http.get(path, params={"limit": 1}).json()
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def _list(self, path: str) -> Iterator[Any]:
        more = ""
        while True:
            page = self.http.get(path, params={"limit": 500, "continue": more}).json()
            yield from page["items"]
            if not (more := page["metadata"].get("continue", "")):
                return

    def until_acted(self, name: str, port: int) -> float:
        """Change a server's port; return the milliseconds until its StatefulSet has it."""
        version = self.http.get(f"{SETS}/{name}").json()["metadata"]["resourceVersion"]
        watch = {"watch": 1, "fieldSelector": f"metadata.name={name}", "resourceVersion": version}
        with self.http.stream("GET", SETS, params=watch, timeout=30) as events:
            began = time.perf_counter()
            change = {"spec": {"engine": {"port": port}}}
            headers = {"Content-Type": "application/merge-patch+json"}
            self.http.patch(f"{SERVERS}/{name}", content=json.dumps(change), headers=headers).raise_for_status()
            for line in events.iter_lines():
                if f'"containerPort":{port}' in line:
                    return (time.perf_counter() - began) * 1000
        raise TimeoutError(f"the StatefulSet of {name} did not follow")


@contextmanager
def administrator(kubectl: Kubectl) -> Iterator[Cluster]:
    """Reach the API server with all rights."""
    kubectl.ok("create", "serviceaccount", "bench", "-n", "default")
    bound = ("--clusterrole=cluster-admin", "--serviceaccount=default:bench")
    kubectl.ok("create", "clusterrolebinding", "bench", *bound)
    config = json.loads(kubectl.ok("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    url = config["clusters"][0]["cluster"]["server"]
    # A throwaway cluster of our own on this machine: its certificate is nobody's concern.
    trusting = ssl._create_unverified_context()
    token = {"Authorization": f"Bearer {kubectl.token('bench', 'default')}"}
    with httpx2.Client(base_url=url, verify=trusting, headers=token, trust_env=False, timeout=60) as http:
        yield Cluster(http)


def _wait(true: Callable[[], bool], seconds: float) -> float:
    began = time.perf_counter()
    while not true():
        if time.perf_counter() - began > seconds:
            raise TimeoutError(f"not within {seconds:.0f} s")
        time.sleep(0.25)
    return time.perf_counter() - began


def _metric(of: OperatorProcess, name: str) -> float:
    return next(float(line.split()[1]) for line in of.metrics().splitlines() if line.startswith(f"{name} "))


def _idle_writes(of: OperatorProcess) -> float:
    """Return writes a minute while nothing happens; the operator's own Lease is among them."""
    before = _metric(of, "ebbtide_api_writes_total")
    time.sleep(IDLE_S)
    return (_metric(of, "ebbtide_api_writes_total") - before) * 60 / IDLE_S


def measure(count: int, samples: int) -> tuple[list[Row], list[Goal]]:
    """Measure one size."""
    limits = json.loads(LIMITS.read_text())
    with tempfile.TemporaryDirectory() as folder, control_plane(Path(folder)) as kubectl:
        tls = certificate(Path(folder) / "tls")
        with administrator(kubectl) as cluster:
            cluster.create(count)
            with operator(kubectl, Path(folder) / "op", tls) as running:
                first = _wait(lambda: cluster.done(count), limits["firstPassSeconds"] * 10)
                idle = _idle_writes(running)
                acted = [cluster.until_acted(f"s-{each % count}", 9000 + each) for each in range(samples)]
                memory = psutil.Process(running.process.pid).memory_info().rss / 2**20
    name = f"{count} servers"
    rows = [
        row(WORKLOAD, name, "first pass", "s", [first]),
        row(WORKLOAD, name, "resident memory", "MiB", [memory]),
        row(WORKLOAD, name, "writes a minute while idle", "", [idle]),
        row(WORKLOAD, name, "spec to StatefulSet", "ms", acted),
    ]
    p99 = sorted(acted)[min(len(acted) - 1, int(0.99 * len(acted)))]
    return rows, [
        at_most(f"{name}: first pass", first / count * 1000, limits["firstPassSeconds"], "s for 1,000"),
        at_most(f"{name}: resident memory", memory, limits["residentMiB"], "MiB"),
        at_most(f"{name}: writes a minute while idle, its own Lease's", idle, limits["idleWritesPerMinute"]),
        at_most(f"{name}: spec to StatefulSet (p99)", p99, limits["actionP99Ms"], "ms"),
    ]


def run(*, quick: bool) -> Report:
    """Measure 1,000 servers, and 10,000 unless it is to be quick."""
    if not SCRIPT:
        raise SystemExit("scripts/bench operator: set EBBTIDE_CLUSTER to a script that starts a control plane")
    report = Report("The operator, many servers, real API server")
    for count, samples in [(200, 50)] if quick else [(1000, 200), (10000, 200)]:
        report.add(*measure(count, samples))
    return report
