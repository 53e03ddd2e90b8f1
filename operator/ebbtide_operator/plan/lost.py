"""A lost holder whose memory nobody can measure: what it holds is unknown, and unknown is never free."""

from __future__ import annotations

from dataclasses import replace

from .record import LeaseRecord, PodRef
from .world import TrainerView, World

NAMED = 3
"""How many pods are named in a sentence."""


def unmeasured(world: World) -> TrainerView | None:
    """Return who may hold the lease's memory though nobody measured it; None when nobody of them is left.

    Who waits in the queue has given up what it had: that is the holder's own word, as a release is. A process that
    lost its lease and asks again, or a pod that replaces the lost one and has its label, waits for nobody but itself.
    """
    trainer, lease = world.trainer, world.record.lease
    if trainer is None or lease is None or not trainer.unmeasured:
        return None
    if trainer.pods:
        waiting = {one.pod.uid for one in world.record.queue if one.pod}
        left = tuple(pod for pod in trainer.pods if pod.uid not in waiting)
        return replace(trainer, pods=left) if left else None
    return None if any(_is_same_process(lease, one) for one in world.record.queue) else trainer


def _is_same_process(lease: LeaseRecord, other: LeaseRecord) -> bool:
    return lease.pid is not None and (lease.pid, lease.pid_start) == (other.pid, other.pid_start)


def how_to_end(trainer: TrainerView) -> str:
    """Return what people can do about a lost holder that lives."""
    if trainer.pods:
        return (
            f"{_running(trainer.pods)}, and nobody can measure what that holds: {_ends(trainer.pods)}.{_note(trainer)}"
        )
    if trainer.used_mib is None:
        return f"End process {trainer.pid}: nobody can measure what it holds of the device."
    return f"End process {trainer.pid}, which holds {trainer.used_mib:.0f} MiB."


def _running(pods: tuple[PodRef, ...]) -> str:
    named = ", ".join(pod.name for pod in pods[:NAMED])
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return f"Pods {named}{more} have not ended" if len(pods) > 1 else f"Pod {named} has not ended"


def _ends(pods: tuple[PodRef, ...]) -> str:
    return ", ".join(f"`kubectl delete pod {pod.name} -n {pod.namespace}`" for pod in pods[:NAMED])


def _note(trainer: TrainerView) -> str:
    return f" {trainer.note}" if trainer.note else ""
