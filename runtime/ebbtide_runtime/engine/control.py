"""The control verbs, over vLLM's EngineClient. Knows no HTTP; failures are EbbtideErrors with stable codes.

No call has a timeout: replies of vLLM's executor carry no id, so the call after an abandoned one reads its answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, EngineState, RankState, Weights

PAUSE_MODES = ("wait", "abort", "keep")
TAGS = ("weights", "kv_cache")
T = TypeVar("T")
_DEATH_POLL_S = 0.1
_SETTLE_S = 0.005
_SETTLE_ROUNDS = 200


class Client(Protocol):
    """The part of vLLM's EngineClient that is used here."""

    async def pause_generation(self, *, mode: str, clear_cache: bool) -> None:
        """Stop scheduling."""

    async def resume_generation(self) -> None:
        """Schedule again."""

    async def is_paused(self) -> bool:
        """Whether it schedules."""

    async def sleep(self, level: int, mode: str) -> None:
        """Release all memory."""

    async def wake_up(self, tags: list[str]) -> bool:
        """Take the tags' memory again."""

    async def collective_rpc(self, method: str, *, args: tuple[Any, ...]) -> Any:
        """Call a method in every worker."""

    async def update_weight_version(self, new_version: str) -> None:
        """Name the version in responses."""


class Adapter(Protocol):
    """What of the engine depends on vLLM's version (`compat`)."""

    async def reset_caches(self, client: Any) -> bool:
        """Forget all that was computed with other weights; False when it could not."""

    def dead(self, client: Any) -> bool:
        """Whether the engine's core has died."""

    def unfinished(self, client: Any) -> int:
        """Count requests."""

    def kv_blocks(self, client: Any) -> int:
        """Count KV blocks."""


class Control:
    """One engine's control verbs. Those that change memory run one at a time; a pause may overtake another."""

    def __init__(self, client: Client, adapter: Adapter) -> None:
        self._client = client
        self._adapter = adapter
        self._lock = asyncio.Lock()

    async def state(self) -> EngineState:
        """Ask every rank."""
        return await self._engine(await self._ranks("ebbtide_state"))

    async def pause(self, mode: str, clear_cache: bool) -> EngineState:
        """Stop scheduling; returns when no request is left, or all are frozen (`keep`)."""
        if mode not in PAUSE_MODES:
            raise EbbtideError(ErrorCode.INVALID_MODE, f"There is no mode {mode!r}.", modes=list(PAUSE_MODES))
        async with _named("pause"):
            await self._heard(self._client.pause_generation(mode=mode, clear_cache=clear_cache))
        if mode != "keep":
            await self._until_idle()
        return await self.state()

    async def _until_idle(self) -> None:
        # The engine is idle; the last outputs are on their way through this process.
        for _ in range(_SETTLE_ROUNDS):
            if not self._adapter.unfinished(self._client):
                return
            await asyncio.sleep(_SETTLE_S)

    async def resume(self) -> EngineState:
        """Schedule again. 409 unless weights and KV are there and committed."""
        async with self._alone("resume"):
            ranks = await self._ranks("ebbtide_state")
            self._require_whole(ranks)
            await self._heard(self._client.resume_generation())
            return await self._engine(ranks)

    async def sleep(self, level: int) -> EngineState:
        """Release weights and KV. First every rank has what the level needs (507 otherwise, nothing touched)."""
        if level not in (1, 2):
            raise EbbtideError(ErrorCode.LEVEL_UNSUPPORTED, f"There is no sleep level {level}.", levels=[1, 2])
        async with self._alone("sleep"):
            prepared = await self._ranks("ebbtide_prepare", level)
            if failures := _failures(prepared):
                raise EbbtideError(ErrorCode.HOST_MEMORY_INSUFFICIENT, f"No parked copy: {failures[0]}", ranks=failures)
            await self._heard(self._client.sleep(level=level, mode="abort"))
            return await self._after("sleep")

    async def wake(self, tag: str) -> EngineState:
        """Take a tag's memory again."""
        if tag not in TAGS:
            raise EbbtideError(ErrorCode.INVALID_TAG, f"There is no tag {tag!r}.", tags=list(TAGS))
        async with self._alone("wake"):
            await self._heard(self._client.wake_up([tag]))
            return await self._after("wake")

    async def park(self) -> EngineState:
        """Begin the parked copies, beside serving."""
        async with self._alone("park"):
            return await self._engine(await self._ranks("ebbtide_park"))

    async def reload(self, path: str, version: int) -> EngineState:
        """Load a folder of safetensors in place, as the pending version."""
        async with self._alone("reload"):
            await self._ranks("ebbtide_reload", path, version)
            return await self._after("reload")

    async def commit(self, version: int) -> EngineState:
        """Make the pending version the engine's, with empty caches. 409 unless every rank has loaded it."""
        async with self._alone("commit"):
            ranks = await self._ranks("ebbtide_state")
            if not all(_has_loaded(rank.state, version) for rank in ranks):
                raise EbbtideError(ErrorCode.WEIGHTS_NOT_COMMITTED, f"Version {version} is not loaded on every rank.")
            if not await self._heard(self._adapter.reset_caches(self._client)):
                raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, "Requests still use the prefix cache: pause first.")
            await self._ranks("ebbtide_commit", version)
            await self._heard(self._client.update_weight_version(str(version)))
            return await self._after("commit")

    def _require_whole(self, ranks: Sequence[_Reply]) -> None:
        for rank in (reply.state for reply in ranks):
            if rank.weights is not Weights.RESIDENT or rank.pending_version is not None:
                message = f"Rank {rank.rank}'s weights are {rank.weights}, pending version {rank.pending_version}."
                raise EbbtideError(ErrorCode.WEIGHTS_NOT_COMMITTED, message)
            if rank.kv is not KV.RESIDENT:
                raise EbbtideError(ErrorCode.ILLEGAL_TRANSITION, f"Rank {rank.rank}'s KV cache is {rank.kv}.")

    async def _after(self, verb: str) -> EngineState:
        ranks = await self._ranks("ebbtide_state")
        if failures := _failures(ranks):
            raise EbbtideError(ErrorCode.ENGINE_FAULTED, f"{verb} failed: {failures[0]}", ranks=failures)
        return await self._engine(ranks)

    async def _ranks(self, method: str, *arguments: Any) -> list[_Reply]:
        async with _named(method):
            answers = await self._heard(self._client.collective_rpc(method, args=arguments))
            return [_Reply(answer) for answer in answers]

    async def _engine(self, ranks: Sequence[_Reply]) -> EngineState:
        async with _named("state"):
            return EngineState(
                ranks=[reply.state for reply in ranks],
                paused=await self._heard(self._client.is_paused()),
                weight_version=min(reply.state.version for reply in ranks),
                kv_blocks=self._adapter.kv_blocks(self._client),
                unfinished=self._adapter.unfinished(self._client),
            )

    async def _heard(self, call: Awaitable[T]) -> T:
        """Await vLLM's answer, or its death: a call that was open when the core was killed is never answered."""
        task = asyncio.ensure_future(call)
        while not (await asyncio.wait({task}, timeout=_DEATH_POLL_S))[0]:
            if self._adapter.dead(self._client):
                task.cancel()
                raise EbbtideError(ErrorCode.ENGINE_FAULTED, "The engine's core died.")
        return task.result()

    @asynccontextmanager
    async def _alone(self, verb: str) -> AsyncIterator[None]:
        async with self._lock, _named(verb):
            yield


class _Reply:
    """A rank's state, and why its last step failed."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.state = RankState.model_validate(answer)
        self.failure = str(answer.get("failure", ""))


def _failures(ranks: Sequence[_Reply]) -> list[str]:
    return [f"rank {reply.state.rank}: {reply.failure}" for reply in ranks if reply.failure]


def _has_loaded(rank: RankState, version: int) -> bool:
    loaded = rank.version if rank.pending_version is None else rank.pending_version
    return rank.weights is Weights.RESIDENT and loaded == version


@asynccontextmanager
async def _named(verb: str) -> AsyncIterator[None]:
    """Turn what vLLM raises into ENGINE_FAULTED: after it, what the engine did is unknown."""
    try:
        yield
    except EbbtideError:
        raise
    except Exception as problem:
        message = f"{verb}: {type(problem).__name__}: {problem}"
        raise EbbtideError(ErrorCode.ENGINE_FAULTED, message) from problem
