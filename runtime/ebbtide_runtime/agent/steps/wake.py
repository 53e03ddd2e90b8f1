"""Waking: the weights, and later, when there is room for it, the KV cache. Never both in one call."""

from __future__ import annotations

from ebbtide_api.state import KV, Weights
from ebbtide_api.verbs import Nothing

from ..action import Action, Running
from ..lifecycle import Event, Meet
from ..member import Member


async def wake_weights(member: Member) -> None:
    """Give the weights memory, from their parked copy where there is one. Raises FaultError."""
    if member.ranks.weights is Weights.RESIDENT:
        return
    # Discarded weights come back as room for an update or a reload; they are still discarded.
    kept = member.ranks.weights is not Weights.DISCARDED
    wanted = {Weights.RESIDENT} if kept else {Weights.RESIDENT, Weights.DISCARDED}

    def awake(ranks: Meet) -> bool:
        return ranks.weights in wanted

    await member.command("wake weights", member.engine.wake_weights(), awake)


def _kv_awake(ranks: Meet) -> bool:
    return ranks.kv is KV.RESIDENT and ranks.weights is Weights.RESIDENT


class WakeWeights(Action[Nothing]):
    """Wake the weights."""

    async def run(self, running: Running) -> None:
        """Wake them."""
        await wake_weights(self.member)
        self.member.apply(Event.WEIGHTS_AWAKE)


class WakeKV(Action[Nothing]):
    """Wake the KV cache; the engine schedules again, and the gate stays shut."""

    async def run(self, running: Running) -> None:
        """Wake it, unless an update from `Paused` kept it."""
        member = self.member
        if member.ranks.kv is not KV.RESIDENT:
            await member.command("wake KV", member.engine.wake_kv(), _kv_awake)
        member.apply(Event.KV_AWAKE)
