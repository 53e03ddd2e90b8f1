"""A real gateway and two real agents over scripted engines, the real `ebbtide proxy` before them, and a look past both.

What is asserted of a member comes from its control page, which launcher and agent write, and from the engine itself:
never from the proxy that is tested.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from ebbtide.safetensors import header_of
from ebbtide.tensors import pieces_of
from ebbtide_api.member import MemberConfig
from ebbtide_api.state import PHASE_NUMBER, Phase
from ebbtide_runtime.native import Field, Page

from tests.shims.launcher import LIES
from tests.support.polling import eventually
from tests.support.streaming import StreamHouse, weights
from tests.unit.operator.given import until

MIB = 1 << 20
MEMBERS = ("chat-0", "chat-1")
ASLEEP, WEIGHTS, ALL = 100, 300, 350
"""What a scripted engine holds of its device, in MiB: asleep, with its weights, with everything."""
_PHASES = {number: phase for phase, number in PHASE_NUMBER.items()}


class ShimHouse(StreamHouse):
    """Two members of one server, and the proxy's process."""

    operator_module = "tests.shims.agents"

    def __init__(self, folder: Path, handoff: str = "SharedMemory", model: Path | None = None) -> None:
        engine = {"port": two_ports()}
        super().__init__(folder, weights(1), engine=engine, weights={"handoff": handoff})
        if model is not None:
            shutil.copy(model / "model.safetensors", folder / "model" / "model.safetensors")
        self.proxies: list[subprocess.Popen[str]] = []
        self.url = ""
        self._pages: dict[str, Page] = {}

    def open(self, *options: str) -> None:
        """Start everything, and wait until it serves."""
        self.start()
        until(lambda: self.phases() == ["Running"] * 2, 90)
        self.url = self.proxy(*options)

    def proxy(self, *options: str) -> str:
        """Start a proxy, and return where it is."""
        command = [sys.executable, "-u", "-m", "ebbtide", "proxy", "actor", "--port", "0", "--home", str(self.home)]
        made = subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_environment()
        )
        self.proxies.append(made)
        assert made.stdout is not None
        said = made.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+) is group actor", said)
        assert found, said
        return found[1]

    def kill_proxy(self) -> None:
        """SIGKILL the proxy that was started last."""
        proxy = self.proxies.pop()
        proxy.kill()
        proxy.communicate(timeout=10)

    def close(self) -> None:
        while self.proxies:
            self.kill_proxy()
        for page in self._pages.values():
            page.close()
        super().close()

    # Past the proxy and the gateway

    def config(self, member: str) -> MemberConfig:
        return MemberConfig.model_validate_json((self.layout.member(member) / "member.json").read_bytes())

    def page(self, member: str) -> Page:
        if member not in self._pages:
            self._pages[member] = Page.open(self.config(member).page_path)
        return self._pages[member]

    def used(self, member: str) -> int:
        """What the launcher measured last, in MiB."""
        measured = self.page(member).measurement()
        assert measured is not None
        return measured.used_bytes // MIB

    def phase(self, member: str) -> Phase:
        return _PHASES[self.page(member).get(Field.PHASE)]

    def admits(self, member: str) -> bool:
        return bool(self.page(member).admission)

    def all(self, phases: Collection[Phase], used: int, admits: bool) -> None:
        """Assert where both members are, at once and without waiting."""
        seen = {name: (str(self.phase(name)), self.used(name), self.admits(name)) for name in MEMBERS}
        assert all(self.phase(name) in phases for name in MEMBERS), seen
        assert all(self.used(name) == used and self.admits(name) is admits for name in MEMBERS), seen

    def engine_versions(self) -> list[tuple[int, int | None]]:
        """What each engine itself says of its weights: committed, and loaded beside it."""
        return [self.engine_version(name) for name in MEMBERS]

    def engine_version(self, member: str) -> tuple[int, int | None]:
        config = self.config(member)
        secret = Path(config.secret_path).read_text().strip()
        url = f"http://127.0.0.1:{config.data_port}/ebbtide/v1/engine"
        answer = httpx2.get(url, headers={"Ebbtide-Secret": secret}, trust_env=False)
        (rank,) = answer.json()["ranks"]
        return rank["version"], rank.get("pendingVersion")

    def lie(self, member: str, **lies: str) -> None:
        """Script what goes wrong in an engine's next calls."""
        path = Path(self.config(member).home, LIES)
        path.write_text(json.dumps(lies))

    def rest(self) -> None:
        """Bring everything to where a test begins: nobody holds the group, both members serve."""
        if self.call("GET", "/v1/groups/actor").json().get("lease"):
            httpx2.post(f"{self.url}/wake_up", trust_env=False, timeout=60)
            httpx2.post(f"{self.url}/resume", trust_env=False, timeout=60)
        eventually(lambda: self.server()["serving"] and self.phases() == ["Running"] * 2, 40)
        eventually(lambda: self.call("GET", "/v1/groups/actor").json().get("lease") is None, 20)

    def transitions(self, verb: str) -> set[str]:
        """The operations of a verb that the operator carried out and that did something."""
        entries = json.loads((self.home / "operations.json").read_text())["entries"]
        done = [each["operation"] for each in entries]
        return {each["id"] for each in done if each["verb"] == verb and not each.get("noop")}


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


def two_ports() -> int:
    """Return a free port whose next one is free too: a server's members take one each."""
    for port in random.sample(range(21000, 29000), 100):
        with socket.socket() as first, socket.socket() as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two ports beside each other are free")


def checkpoint(folder: Path, seed: int, **changed: Any) -> Path:
    """Write a checkpoint as a trainer's `save_pretrained` would: safetensors in a folder, and no manifest."""
    tensors: dict[str, np.ndarray[Any, Any]] = {**weights(1, seed), **changed}
    pieces = pieces_of(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    data = b"".join(bytes(chunk) for piece in pieces for chunk in piece.chunks())
    (folder / "model.safetensors").write_bytes(header_of(pieces) + data)
    return folder


def together(count: int, call: Callable[[], httpx2.Response]) -> list[httpx2.Response]:
    """Make one call from many threads at once."""
    answers: list[httpx2.Response] = []
    barrier = threading.Barrier(count)

    def one() -> None:
        barrier.wait()
        answers.append(call())

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return answers
