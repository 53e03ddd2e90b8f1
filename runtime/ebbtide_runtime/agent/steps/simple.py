"""The short verbs: grant, pause, reconcile."""

from __future__ import annotations

from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Drain, DrainMode, GrantRequest, Nothing, OnDeadline, PauseRequest

from ...native import Field
from ..action import Action, Running
from ..lifecycle import Event
from .drain import drain, drain_budget, must


class Grant(Action[GrantRequest]):
    """Let the launch that waits start its engine."""

    async def prepare(self) -> None:
        """Refuse a grant that is for another launch."""
        boot = self.member.page.get(Field.BOOT)
        if self.body.boot != boot:
            sentence = f"launch {self.body.boot} is not the present one, {boot}"
            raise EbbtideError(ErrorCode.INSTANCE_REPLACED, sentence, boot=boot)
        if self.member.identity.boot != boot:
            # Granted now, it would be taken for one that waits as soon as it is noticed, while its engine starts.
            sentence = f"launch {boot} has just begun, and was not noticed yet"
            raise EbbtideError(ErrorCode.INSTANCE_REPLACED, sentence, boot=boot)

    async def run(self, running: Running) -> None:
        """Grant it. The start itself is watched, not waited for."""
        self.member.forget_engine()
        self.member.page.set(Field.GRANT, self.body.boot)

    async def already(self) -> None:
        """Answer a launch that was granted. Raises INSTANCE_REPLACED for another one."""
        await self.prepare()


class Pause(Action[PauseRequest]):
    """Close admission, and keep all memory."""

    origin: Phase

    async def prepare(self) -> None:
        """Note where the way back would lead."""
        self.origin = self.member.phase

    def budget(self) -> float | None:
        """Return the time of the drain."""
        return drain_budget(self.member, self.body.timeout)

    async def run(self, running: Running) -> None:
        """Freeze what is in flight, end it, or wait for it; without a wait that ends, serve on."""
        if self.body.mode is DrainMode.KEEP:
            await must(self.member.engine.pause(DrainMode.KEEP, clear_cache=False), "pause")
        else:
            how = Drain(mode=self.body.mode, timeout=self.body.timeout, on_deadline=OnDeadline.FAIL)
            await drain(self.member, running, how, self.origin)
        self.member.apply(Event.QUIET)


class Reconcile(Action[Nothing]):
    """Restart an engine that is in no useful state; elsewhere the state is observed anyway."""

    async def run(self, running: Running) -> None:
        """End the engine; it comes back by a new launch."""
        self.member.kill()
        self.member.apply(Event.KILLED)
