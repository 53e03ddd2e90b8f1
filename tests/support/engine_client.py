"""A scripted stand-in for vLLM's EngineClient, with ranks that keep their state as real workers do."""

from __future__ import annotations

import asyncio
from typing import Any

from ebbtide_api.state import KV, Weights
from ebbtide_runtime.engine.rank import Rank


class FlatMemory:
    """A device on which everything works, unless `failing` names the step that does not."""

    def __init__(self) -> None:
        self.failing = ""
        self.copies = 0

    def _step(self, name: str) -> None:
        if self.failing == name:
            raise OSError(f"{name} failed")

    def prepare(self, version: int) -> int:
        self._step("prepare")
        self.copies += 1
        return 100

    def release_weights(self, keep_copy: bool) -> None:
        self._step("release_weights")

    def restore_weights(self, from_copy: bool) -> None:
        self._step("restore_weights")

    def release_kv(self) -> None:
        self._step("release_kv")

    def restore_kv(self) -> None:
        self._step("restore_kv")

    def start_parking(self, version: int) -> None:
        self._step("start_parking")

    def forget_copy(self) -> None:
        pass

    def sizes(self) -> tuple[int, int, int]:
        return 1 << 20, 1 << 20, 1 << 20

    def parked(self) -> tuple[None, bool, str]:
        return None, False, "a copy failed long ago"


class FakeClient:
    """vLLM's client over `ranks` ranks. `calls` notes what was asked, in order."""

    def __init__(self, ranks: int = 2) -> None:
        self.memories = [FlatMemory() for _ in range(ranks)]
        self.ranks = [Rank(number, memory) for number, memory in enumerate(self.memories)]
        for rank in self.ranks:
            rank.loaded()
            rank.kv_ready()
        self.calls: list[str] = []
        self.paused = False
        self.requests = 0
        self.version = "0"
        self.dead = False
        self.hangs: str | None = None
        """The call that is never answered, as those are that were open when the core was killed."""
        self.draining = asyncio.Event()
        self.draining.set()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.dead:
            raise RuntimeError("EngineCore died")

    async def _may_hang(self, name: str) -> None:
        if name == self.hangs:
            self.dead = True
            await asyncio.Event().wait()

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        self._call(f"pause {mode} {clear_cache}")
        await self._may_hang("pause_generation")
        self.paused = True
        if mode == "wait":
            await self.draining.wait()

    async def resume_generation(self) -> None:
        self._call("resume")
        await self._may_hang("resume_generation")
        self.paused = False

    async def is_paused(self) -> bool:
        return self.paused

    async def sleep(self, level: int, mode: str) -> None:
        self._call(f"sleep {level} {mode}")
        await self._may_hang("sleep")
        for rank in self.ranks:
            rank.sleep(level)

    async def wake_up(self, tags: list[str]) -> bool:
        self._call(f"wake {tags}")
        await self._may_hang("wake_up")
        for rank in self.ranks:
            rank.wake(tags)
        return all((rank.weights, rank.kv) == (Weights.RESIDENT, KV.RESIDENT) for rank in self.ranks)

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        self._call(method)
        await self._may_hang("collective_rpc")
        return [self._rank(rank, method, args) for rank in self.ranks]

    def _rank(self, rank: Rank, method: str, args: tuple[Any, ...]) -> dict[str, Any]:
        if method == "ebbtide_prepare":
            rank.prepare(*args)
        elif method == "ebbtide_park":
            rank.park()
        elif method == "ebbtide_reload":
            rank.reload(args[1], lambda: None if args[0] == "/good" else fail(args[0]))
        elif method == "ebbtide_commit":
            rank.commit(*args)
        return {**rank.state().wire(), "failure": rank.error}

    async def update_weight_version(self, new_version: str) -> None:
        self._call(f"version {new_version}")
        await self._may_hang("update_weight_version")
        self.version = new_version


def fail(what: str) -> None:
    raise ValueError(f"{what} is torn")


class FakeAdapter:
    """What `compat` knows of the engine."""

    def __init__(self) -> None:
        self.resets = 0
        self.refuses = False

    async def reset_caches(self, client: Any) -> bool:
        self.resets += 1
        return not self.refuses

    def dead(self, client: FakeClient) -> bool:
        return client.dead

    def unfinished(self, client: FakeClient) -> int:
        client.requests = max(0, client.requests - 1)
        return client.requests

    def kv_blocks(self, client: FakeClient) -> int:
        return 40
