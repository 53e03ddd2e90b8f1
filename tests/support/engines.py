"""The real engine, started by the real launcher, and driven as its agent does."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from ebbtide_api.state import EngineState
from ebbtide_api.verbs import SECRET as HEADER
from ebbtide_runtime.native import Field

from tests.support.launching import MIB, Launch, until
from tests.support.members import SECRET, write_member

START_S = 240.0


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealEngine:
    """A running engine: its launch, its page, and HTTP with and without the secret."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.page = launch.page
        self.port = launch.member.data_port
        self.client = httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=120, trust_env=False)
        self._versions = itertools.count(1)

    def wait_until_up(self) -> None:
        """Wait until the engine answers, or say what its log ends with."""
        until(lambda: self._is_up() or self.launch.process.poll() is not None, "the engine", START_S)
        assert self.launch.process.poll() is None, self.launch.last_line()

    def _is_up(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx2.HTTPError:
            return False

    def post(self, verb: str, **body: Any) -> httpx2.Response:
        """Call a control verb, as the agent does."""
        return self.client.post(f"/ebbtide/v1/{verb}", json=body, headers={HEADER: SECRET})

    def control(self, verb: str, **body: Any) -> EngineState:
        """Call a control verb that must work."""
        answer = self.post(verb, **body)
        assert answer.status_code == 200, answer.text
        return EngineState.model_validate_json(answer.content)

    def state(self) -> EngineState:
        """Ask every rank."""
        answer = self.client.get("/ebbtide/v1/engine", headers={HEADER: SECRET})
        assert answer.status_code == 200, answer.text
        return EngineState.model_validate_json(answer.content)

    def tokens(self, prompt: str = "ebb and flow", count: int = 16) -> list[int]:
        """Return greedy tokens, past the closed gate."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": count, "temperature": 0, "return_token_ids": True}
        answer = self.client.post("/v1/completions", json={**body, "ignore_eos": True}, headers={HEADER: SECRET})
        assert answer.status_code == 200, answer.text
        return [int(token) for token in answer.json()["choices"][0]["token_ids"]]

    def sleep(self, level: int) -> EngineState:
        """Pause, then sleep, as the agent does."""
        self.control("pause", mode="abort", clearCache=True)
        return self.control("sleep", level=level)

    def wake(self) -> EngineState:
        """Wake weights, then KV, then schedule."""
        self.control("wake", tag="weights")
        self.control("wake", tag="kv_cache")
        return self.control("resume")

    def load(self, folder: Path) -> int:
        """Load and commit a folder as the next version, and return that."""
        version = next(self._versions)
        self.control("reload", path=str(folder), version=version)
        self.control("commit", version=version)
        return version

    @property
    def baseline_mib(self) -> float:
        """What the engine used just before it loaded weights."""
        return self.page.get(Field.BASELINE) / MIB

    def used_mib(self) -> float:
        """What it uses now."""
        return self.launch.used_mib()


@contextmanager
def real_engine(folder: Path, model: Path, **member: Any) -> Iterator[RealEngine]:
    """Start an engine under `folder`, wait until it answers, and end it."""
    arguments = ["--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8"]
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    path = write_member(
        folder, **{"model": str(model), "data_port": free_port(), "extra_args": arguments, "env": env, **member}
    )
    engine = RealEngine(Launch(path))
    try:
        engine.launch.grant()
        engine.wait_until_up()
        yield engine
    finally:
        engine.client.close()
        engine.launch.close()
