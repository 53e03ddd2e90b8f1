"""A server of the tiny model on CPU engines, what it answers, and what its containers hold by their cgroups."""

from __future__ import annotations

import json
from typing import Any

from .kube import Object, apply, get, kubectl, until

HOME = "e2e-lend"
NAME, GROUP = "tiny", "actor"
PODS = [f"{NAME}-0", f"{NAME}-1"]
MIB = 1 << 20
KV_MIB = 1024
_PLACES = ("/sys/fs/cgroup/memory/memory.stat", "/sys/fs/cgroup/memory.stat")  # version 1, version 2
_KEYS = ("anon", "rss")


def server(space: str, image: str, replicas: int = 2, **spec: object) -> Object:
    """Return the server; two of its replicas start and serve on two cores."""
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    # AMX is not usable on every machine that has it.
    env = {"VLLM_CPU_KVCACHE_SPACE": str(KV_MIB >> 10), "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **threads}
    body = {
        "model": {"source": "/models/tiny"},
        "replicas": replicas,
        "engine": {
            "image": image,
            "extraArgs": ["--enforce-eager", "--max-model-len=1024", "--max-num-seqs=8", "--dtype=bfloat16"],
            "env": [{"name": name, "value": value} for name, value in env.items()],
        },
        # All replicas and the trainer share the one declared device.
        "colocation": {"group": GROUP, "hostMemoryLimit": "512Mi", "devices": {"cpu": {"memory": "8Gi"}}},
        **spec,
    }
    meta = {"name": NAME, "namespace": space}
    return {"apiVersion": "ebbtide.dev/v1alpha1", "kind": "InferenceServer", "metadata": meta, "spec": body}


class Serving:
    """A server that was applied."""

    def __init__(self, space: str, document: Object) -> None:
        self.space, self.document = space, document
        apply(document)

    def status(self) -> dict[str, Any]:
        """Return its status."""
        found: dict[str, Any] = get("isv", NAME, "-n", self.space).get("status", {})
        return found

    def wait(self, phase: str, awake: int, seconds: float = 60) -> None:
        """Wait until it is in a phase, with so many replicas awake, and the kubelet agrees."""

        def so() -> bool:
            status = self.status()
            return (status.get("phase"), status.get("awakeReplicas")) == (phase, awake) == (phase, len(self.ready()))

        until(f"{NAME} is {phase} with {awake} awake", so, seconds)

    def patch(self, **spec: object) -> None:
        """Change its spec."""
        kubectl("patch", "isv", NAME, "-n", self.space, "--type=merge", "-p", json.dumps({"spec": spec}))

    def pods(self) -> list[Object]:
        """Return its pods."""
        found: list[Object] = get("pods", "-n", self.space, "-l", f"ebbtide.dev/server={NAME}")["items"]
        return found

    def addresses(self) -> list[str]:
        """Return the addresses of its pods."""
        return [each["status"]["podIP"] for each in self.pods()]

    def ready(self) -> list[str]:
        """Return the names of the pods that get requests."""
        return [
            each["metadata"]["name"]
            for each in self.pods()
            if any(one["type"] == "Ready" and one["status"] == "True" for one in each["status"].get("conditions", []))
        ]

    def restarts(self) -> int:
        """Count the restarts of all containers."""
        kinds = ("initContainerStatuses", "containerStatuses")
        return sum(
            one["restartCount"] for each in self.pods() for kind in kinds for one in each["status"].get(kind, [])
        )

    def inside(self, pod: str, code: str) -> str:
        """Run Python in a pod's engine container."""
        return kubectl("exec", pod, "-n", self.space, "-c", "engine", "--", "python3", "-c", code)

    def tokens(self, count: int = 8, host: str = "") -> list[int]:
        """Return greedy tokens, asked for at the Service by its name, or at one pod's address; never fewer."""
        body = {"model": NAME, "prompt": "the quick brown", "max_tokens": count, "temperature": 0}
        body |= {"return_token_ids": True, "ignore_eos": True}
        url = f"http://{host or f'{NAME}.{self.space}.svc'}:8000/v1/completions"
        code = (
            "import json, urllib.request as web;"
            f"call = web.Request({url!r}, {json.dumps(body)!r}.encode(), {{'Content-Type': 'application/json'}});"
            "print(json.dumps(json.load(web.urlopen(call, timeout=60))['choices'][0]['token_ids']))"
        )
        found: list[int] = json.loads(self.inside(f"{NAME}-0", code))
        return found

    def anonymous_mib(self, pod: str) -> float:
        """Return the anonymous memory of a pod's engine container, by its cgroup."""
        code = f"import os; print(open(next(p for p in {_PLACES!r} if os.path.exists(p))).read())"
        stat = dict(line.split() for line in self.inside(pod, code).splitlines() if line)
        return next(int(stat[key]) for key in _KEYS if key in stat) / MIB
