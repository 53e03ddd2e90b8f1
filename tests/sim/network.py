"""The network: calls that are late, overtake each other, come twice, get lost, or whose answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .world import World

GATEWAY = "gateway"
SILENCE = 2.0
"""Seconds until a caller gives up on a call that is lost."""


class Network:
    """Carries calls to a place: a pod's agent, or the gateway."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._cut: dict[str, float] = {}

    def cut(self, where: str, seconds: float) -> None:
        """Let nothing through to a place for a while."""
        self._cut[where] = self._world.loop.time() + seconds

    def heal(self) -> None:
        self._cut.clear()

    async def carry(self, where: str, ask: Callable[[], Awaitable[Any]], lost: type[Exception], *, repeat: bool) -> Any:
        """Carry a call there and its answer back. Raises `lost` when either is lost."""
        if not repeat:
            return await self._carry(where, ask, lost)
        chance, faults = self._world.chance, self._world.faults
        if chance.random() < faults.repeats:
            self._world.spawn(self._again(ask, lost))
        # On its way a call is nobody's: it arrives, though whoever sent it is dead.
        return await asyncio.shield(self._world.spawn(self._carry(where, ask, lost)))

    async def _carry(self, where: str, ask: Callable[[], Awaitable[Any]], lost: type[Exception]) -> Any:
        await self._hop(where, lost)
        try:
            answer = await ask()
        except lost:
            await asyncio.sleep(0.2)
            raise
        except Exception:
            await self._hop(where, lost)
            raise
        await self._hop(where, lost)
        return answer

    async def _hop(self, where: str, lost: type[Exception]) -> None:
        chance, faults = self._world.chance, self._world.faults
        if self._cut.get(where, 0.0) > self._world.loop.time() or chance.random() < faults.loss:
            await asyncio.sleep(SILENCE)
            raise lost("lost")
        if chance.random() < faults.slow:
            await asyncio.sleep(chance.uniform(0.5, 8.0))
        elif chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0.001, 0.02))

    async def _again(self, ask: Callable[[], Awaitable[Any]], lost: type[Exception]) -> None:
        await asyncio.sleep(self._world.chance.choice([0.0, 0.1, 2.0, 20.0]))
        try:
            await ask()
        except Exception as problem:
            self._world.note(f"a call that came twice was answered {problem}")
