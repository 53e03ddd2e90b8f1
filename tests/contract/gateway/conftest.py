"""A gateway over HTTP, its operator, and fake members behind it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ebbtide_api.server import InferenceServer
from ebbtide_operator.drive.store import GroupStore
from ebbtide_operator.gateway.app import build
from ebbtide_operator.loop import Operator
from ebbtide_operator.operations import Operations
from ebbtide_operator.settings import Settings

from tests.support.fake_driver import FakeDriver

TOKEN = "a-token"
GROUP = "/v1/groups/actor"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def document(name: str = "chat", model: str = "", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ebbtide.dev/v1alpha1",
        "kind": "InferenceServer",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": spec.pop("source", model)},
            "replicas": 2,
            "colocation": {"group": "actor", "devices": {"cpu": {"memory": "1000Mi"}}},
            **spec,
        },
    }


@dataclass
class House:
    """An operator and a client of it."""

    folder: Path
    settings: Settings
    driver: FakeDriver = field(default_factory=FakeDriver)
    operator: Operator = None  # type: ignore[assignment]
    client: httpx2.AsyncClient = None  # type: ignore[assignment]
    down: list[bool] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def document(self, name: str = "chat", **spec: Any) -> dict[str, Any]:
        return document(name, str(self.folder / "model"), **spec)

    def server(self, name: str = "chat", **spec: Any) -> InferenceServer:
        return InferenceServer.model_validate(self.document(name, **spec))

    async def open(self, servers: list[InferenceServer] | None = None) -> None:
        records = GroupStore(self.folder / "groups")
        operations = Operations(self.folder / "operations.json", self.settings.operations_kept)
        self.operator = Operator(self.driver, records, operations, self.settings)
        app = build(
            self.operator,
            TOKEN,
            shutdown=lambda: self.down.append(True),
            remember=lambda server: self.kept.append(server.name),
        )
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app),
            base_url="http://gateway",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=30,
        )
        await self.operator.start([self.server()] if servers is None else servers)

    async def close(self) -> None:
        await self.operator.stop(keep=False)
        await self.client.aclose()

    async def crash(self) -> None:
        """End the operator as SIGKILL would, but for its tasks; its members live on. Then another one starts."""
        servers = list(self.operator.servers.values())
        await self.operator.queue.close()
        for task in tuple(self.operator.tasks):
            task.cancel()
        await asyncio.gather(*self.operator.tasks, return_exceptions=True)
        await self.client.aclose()
        old, self.driver = self.driver, FakeDriver()
        self.driver.fakes, self.driver.trainers, self.driver.published = old.fakes, old.trainers, old.published
        await old.stop(keep=True)
        await self.open(servers)

    async def until(self, holds: Callable[[], bool], seconds: float = 10.0) -> None:
        due = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < due, f"not within {seconds} s: {self.record} {self.driver.fakes}"
            await asyncio.sleep(0.005)

    @property
    def record(self) -> Any:
        return self.operator.groups["actor"].record

    async def serving(self) -> None:
        await self.until(lambda: self._all("Running"))

    def _all(self, phase: str) -> bool:
        fakes = self.driver.fakes.values()
        return len(fakes) > 0 and all(fake.phase == phase for fake in fakes)

    # what callers do

    async def acquire(self, holder: str = "trainer", **fields: Any) -> dict[str, Any]:
        answer = await self.client.post(f"{GROUP}/lease", json={"holder": holder, "ttlSeconds": 30, **fields})
        assert answer.status_code in {201, 202}, answer.text
        return answer.json()  # type: ignore[no-any-return]

    async def ask(self, verb: str, lease: dict[str, Any], body: Any = None, **headers: str) -> httpx2.Response:
        return await self.client.post(f"{GROUP}:{verb}", json=body or {}, headers={**by(lease), **headers})

    async def ended(self, answer: httpx2.Response) -> dict[str, Any]:
        assert answer.status_code in {200, 202}, answer.text
        done = await self.client.get(f"/v1/operations/{answer.json()['id']}", params={"wait": "20s"})
        assert done.json()["status"] != "Running", done.text
        return done.json()  # type: ignore[no-any-return]

    async def lent(self, **fields: Any) -> dict[str, Any]:
        lease = await self.acquire(**fields)
        done = await self.ended(await self.ask("lend", lease))
        assert done["status"] == "Done", done
        return lease

    def publish(self, version: int) -> None:
        self.driver.published.add(f"/memory/handoff/actor/v{version}")


def by(lease: dict[str, Any]) -> dict[str, str]:
    """Return the header that says who calls."""
    return {"Ebbtide-Epoch": str(lease["epoch"])}


def code(answer: httpx2.Response, status: int) -> str:
    """Return the code of an error, which must be complete and have the status."""
    body = answer.json()
    assert answer.status_code == status, answer.text
    assert body["message"]
    assert body["nextAction"]
    assert isinstance(body["retryable"], bool)
    return str(body["code"])


@pytest.fixture
async def closed(tmp_path: Path, anyio_backend: str) -> AsyncIterator[House]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({}))
    settings = replace(Settings(), home=tmp_path, body_limit=4096, longest_wait=20.0)
    house = House(tmp_path, settings)
    yield house
    if house.operator is not None:
        with contextlib.suppress(asyncio.CancelledError):
            await house.close()


@pytest.fixture
async def house(closed: House) -> House:
    await closed.open()
    await closed.serving()
    return closed
