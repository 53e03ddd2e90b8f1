"""Trainers: the client's own flows, over a network, in processes that are killed and stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebbtide.client.borrowing import Borrowing, Stop, Terms
from ebbtide.client.flow import Answer, Pause, Send, Silence
from ebbtide.client.gateway import Gateway
from ebbtide.client.keeper import OnLost, keep
from ebbtide.client.runners import AsyncRunner
from ebbtide.weights import Published
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import Lease, LendResult

from .gateway import Request, handle
from .operator import GROUP, HANDOFF

if TYPE_CHECKING:
    from .world import World


class KilledError(BaseException):
    """The process is dead: nothing in it goes on."""


class Runner(AsyncRunner):
    """The real runner; requests go over the simulated network."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    async def _do(self, effect: Send | Pause) -> Answer | None:
        await self._trainer.running()
        if isinstance(effect, Pause):
            await asyncio.sleep(effect.seconds)
            answer: Answer | None = None
        else:
            answer = await self._trainer.send(effect)
        await self._trainer.running()
        return answer


class Trainer:
    """One trainer process. `held` is the device memory that it uses, in truth. MiB."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.pid = world, name, world.new_pid()
        self.dead, self.held = False, 0.0
        self.moving = asyncio.Event()
        self.moving.set()
        self.runner = Runner(self)
        self.sent: list[Request] = []
        self.state = "thinks"
        self.tasks = [world.spawn(self._live())]

    async def running(self) -> None:
        if not self.moving.is_set():
            await self.moving.wait()
        if self.dead:
            raise KilledError

    async def send(self, effect: Send) -> Answer:
        request = Request.of(effect)
        if effect.method != "GET":
            self.sent = [*self.sent[-3:], request]
        try:
            async with asyncio.timeout(effect.timeout + 1):
                return await self.world.to_gateway(request)  # type: ignore[no-any-return]
        except (ConnectionError, TimeoutError) as problem:
            return Silence(str(problem) or "late")

    # its life

    async def _live(self) -> None:
        chance = self.world.chance
        try:
            while self.world.busy:
                await asyncio.sleep(chance.uniform(0.1, 3.0))
                await self.running()
                if self.world.busy:
                    await self._borrow()
            # Its process ends: nobody waits for the memory of one whose last farewell was lost.
            self.dead = True
            self._free()
        except KilledError:
            pass

    async def _borrow(self) -> None:
        chance = self.world.chance
        gateway = Gateway("sim", clock=self.world.loop.time, jitter=chance.random)
        free = self.world.budget - self.world.replicas * 130
        need = chance.choice([None, free, free / 2])
        terms = Terms(
            GROUP,
            holder=self.name,
            pid=self.pid,
            ttl=chance.choice([6.0, 20.0]),
            need_mib=need,
            patience=60,
            timeout=60,
        )
        core = Borrowing(gateway, terms, self._keep, self._alone)
        try:
            self._say("asks")
            lend = await self.runner.run(core.take())
            await self._train(core, lend)
            self._say("gives back")
            done = await self.runner.run(core.give_back(keep_new=chance.random() < 0.8))
            self._say(f"gave back: version {done.weight_version}")
        except EbbtideError as error:
            self._say(f"heard {error.code}: {error.message[:120]}")
        self._free()

    async def _train(self, core: Borrowing, lend: LendResult) -> None:
        chance = self.world.chance
        if self.world.record.epoch != lend.epoch:
            # Nobody can keep a process from taking memory late; a trainer that looks first does not.
            raise EbbtideError(ErrorCode.STALE_EPOCH, "lost before it was used")
        # What it was told is free it uses, to the last MiB; all that the engines left, where nobody could tell.
        told = [device.free_mib for device in lend.devices if device.free_mib is not None]
        left = self.world.budget - sum(device.residual_mib for device in lend.devices)
        self.held = max(0.0, min(told, default=left) - 1)
        self._say(f"trains with {self.held:.0f} MiB, epoch {lend.epoch}")
        self.world.memory_moved(f"{self.name} trains")
        await asyncio.sleep(chance.uniform(0.2, 4.0))
        await self.running()
        if chance.random() < 0.7:
            version = self.world.next_version()
            whole = chance.random() >= self.world.faults.torn
            self.world.handoff[f"{HANDOFF}/v{version}"] = "whole" if whole else "torn"
            core.published = Published(version, Path(f"{HANDOFF}/v{version}"), 1, 1)
        if not self._would_be_missed() or chance.random() >= self.world.faults.forgets:
            self._free()
        else:
            self.world.loop.call_later(chance.uniform(5, 40), self._free)

    def _would_be_missed(self) -> bool:
        # Memory that is kept is noticed by who needs it: an engine that shall wake, of a size that was ever seen.
        world = self.world
        sizes = world.record.sizes.values()
        # Where nobody can measure it, the way back rests on the holder's word.
        known = world.measured and all(size.weights for size in sizes)
        return known and world.awake == world.replicas == len(sizes)

    def _free(self) -> None:
        self.held = 0.0

    def _say(self, text: str) -> None:
        self.state = text
        self.world.note(f"{self.name}: {text}")

    def _keep(self, lease: Lease, on_lost: OnLost) -> Stop:
        gateway = Gateway("sim", clock=self.world.loop.time, jitter=self.world.chance.random)

        async def renew() -> None:
            try:
                lost = await self.runner.run(keep(gateway, lease, self.world.loop.time))
                self.world.note(f"{self.name}: lease lost: {lost.message}")
                on_lost(lost)
            except KilledError:
                pass

        task = self.world.spawn(renew())
        self.tasks.append(task)
        stop: Callable[[], Any] = task.cancel
        return lambda: stop() and None

    def _alone(self, flow: Any) -> Any:
        raise AssertionError("nothing is streamed here")

    # what happens to it

    def kill(self, lingers: float) -> None:
        """The process dies; the kernel may need a while to free what it held."""
        self._say("is killed")
        self.dead = True
        self.moving.set()
        for task in self.tasks:
            task.cancel()
        self.world.loop.call_later(lingers, self._free)

    def stop(self) -> None:
        self._say("is stopped")
        self.moving.clear()

    def go_on(self) -> None:
        self.moving.set()


__all__ = ["Trainer", "handle"]
