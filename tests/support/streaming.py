"""A home whose agents are real, whose engines are scripted and whose weights are sent; and how a trainer sends them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from ebbtide import Connection, Group
from ebbtide.client.connection import from_home
from ebbtide.safetensors import header_of
from ebbtide.tensors import pieces_of
from ebbtide_api.member import RECEIVED
from ebbtide_api.upload import CRC32C
from ebbtide_operator.drive.layout import Layout
from ebbtide_runtime.native import crc32c

from tests.support.polling import eventually
from tests.unit.operator.house import GROUP, House

MIB = 1 << 20
FILE = "model-00001.safetensors"
DEVICES = {"cpu": {"memory": "8Gi"}}


def weights(mib: int, seed: int = 1, parts: int = 3) -> dict[str, np.ndarray[Any, Any]]:
    """Return tensors of some MiB, with odd sizes, and a small one between."""
    count = mib * MIB // 4 // parts
    made = {f"layer.{n}": np.arange(count + n, dtype=np.float32) + seed for n in range(parts)}
    return {**made, "norm": np.full(7, seed, dtype=np.float32)}


class StreamHouse(House):
    """Two members unless told otherwise."""

    operator_module = "tests.support.real_agents"

    def __init__(
        self, folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]], *, memory: Path | None = None, **spec: Any
    ) -> None:
        told = {"replicas": 2, "weights": {"handoff": "Stream"}, "engine": {"port": 21000}, **spec}
        told.setdefault("colocation", {"group": "actor", "devices": DEVICES})
        super().__init__(folder, **told)
        if memory is not None:
            memory.mkdir()
            self.shm, self.layout = memory, Layout.of(self.home, memory)
        pieces = pieces_of(tensors)
        header = header_of(pieces)
        path = folder / "model" / "model.safetensors"
        path.write_bytes(header)
        # The original's bytes are never read, only its header.
        os.truncate(path, len(header) + sum(piece.length for piece in pieces))

    @property
    def connection(self) -> Connection:
        return from_home(self.home, {})

    @property
    def group(self) -> Group:
        return Group("actor", connection=self.connection, holder="a test")

    def both(self, members: int = 2) -> None:
        self.serving(members)

    def received(self, member: str = "chat-0") -> list[str]:
        """What a member has received and not forgotten."""
        folder = self.layout.member_memory(member) / RECEIVED
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def copies(self, member: str = "chat-0") -> list[str]:
        folder = self.layout.member_memory(member) / "weights"
        return sorted(path.name for path in folder.iterdir())

    def forgotten(self, seconds: float = 10.0) -> None:
        eventually(lambda: not self.received("chat-0") and not self.received("chat-1"), seconds)

    def versions(self) -> list[int]:
        return [member["committedVersion"] for member in self.server()["members"]]

    # what a trainer sends, call by call

    def weights_call(self, method: str, path: str, lease: dict[str, Any] | None, **how: Any) -> httpx2.Response:
        headers = {**how.pop("headers", {}), **({"Ebbtide-Epoch": str(lease["epoch"])} if lease else {})}
        return self.call(method, f"{GROUP}/weights/{path}", headers=headers, **how)

    def begin(self, lease: dict[str, Any] | None, version: int, length: int) -> httpx2.Response:
        body = {"files": [{"name": FILE, "length": length}]}
        return self.weights_call("POST", f"{version}", lease, json=body)

    def piece(
        self, lease: dict[str, Any] | None, version: int, data: bytes, offset: int = 0, **how: Any
    ) -> httpx2.Response:
        headers = {CRC32C: str(how.pop("crc", crc32c(data)))}
        file = how.pop("file", FILE)
        return self.weights_call("PUT", f"{version}/{file}?offset={offset}", lease, content=data, headers=headers)

    def named(self, lease: dict[str, Any] | None, version: int, manifest: bytes) -> httpx2.Response:
        body = {"length": len(manifest), "crc32c": crc32c(manifest)}
        return self.weights_call("POST", f"{version}/publish", lease, json=body)

    def give_back(self, lease: dict[str, Any]) -> None:
        self.call("DELETE", f"{GROUP}/lease/{lease['id']}", headers={"Ebbtide-Epoch": str(lease["epoch"])})
        self.both()


def code(answer: httpx2.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    return json.loads(answer.text)  # type: ignore[no-any-return]
