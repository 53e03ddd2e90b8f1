"""What bad luck does to a world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ebbtide.client.flow import Reply
from ebbtide_api.verbs import IDEMPOTENCY_KEY

from .agent import AgentProcess
from .gateway import Request
from .network import GATEWAY
from .trainer import Trainer

if TYPE_CHECKING:
    from .pod import Pod
    from .world import World

VERBS = ("state", "pause", "sleep", "reload", "wake", "commit", "complete", "resume")


def strike(world: World, kind: str) -> None:
    """Let one thing go wrong."""
    STRIKES[kind](world)


def _pod(world: World) -> Pod:
    return world.pods[world.chance.choice(sorted(world.pods))]


def _agent(world: World) -> None:
    pod = _pod(world)
    if pod.agent is None or pod.agent.dead:
        return
    pod.agent.kill()

    def again() -> None:
        world.note(f"{pod.name}: agent starts")
        pod.agent = AgentProcess(pod, world.level)

    world.loop.call_later(world.chance.uniform(0.1, 3.0), again)


def _engine(world: World) -> None:
    pod = _pod(world)
    if pod.engine is not None:
        pod.engine_dies(pod.engine)


def _launcher(world: World) -> None:
    pod = _pod(world)
    if pod.launcher:
        world.note(f"{pod.name}: launcher is killed")
        pod.launcher_dies()


def _operator(world: World) -> None:
    world.operator.kill()


def _trainer(world: World) -> None:
    trainer = world.chance.choice(world.trainers)
    if trainer.dead:
        return
    trainer.kill(world.chance.choice([0.0, 0.0, 5.0]))

    def again() -> None:
        if world.busy:
            world.trainers.append(Trainer(world, f"trainer-{len(world.trainers)}"))

    world.loop.call_later(world.chance.uniform(0.5, 3.0), again)


def _stop(world: World) -> None:
    trainer = world.chance.choice(world.trainers)
    if trainer.moving.is_set() and not trainer.dead:
        trainer.stop()
        world.loop.call_later(world.chance.choice([2.0, 15.0, 60.0]), trainer.go_on)


def _jump(world: World) -> None:
    seconds = world.chance.choice([3.0, 15.0, 120.0])
    world.note(f"the clock jumps by {seconds} s")
    world.loop.at += seconds


def _cut(world: World) -> None:
    where = world.chance.choice([GATEWAY, *sorted(world.pods)])
    seconds = world.chance.uniform(1, 20)
    world.note(f"{where} is cut off for {seconds:.0f} s")
    world.network.cut(where, seconds)


def _curse(world: World) -> None:
    pod, verb = _pod(world), world.chance.choice(VERBS)
    pod.curse(verb)
    world.note(f"{pod.name}: next {verb}: {pod.lies.get(verb) or pod.fates.get(verb)}")


def _host(world: World) -> None:
    pod = _pod(world)
    pod.host_limit = world.chance.choice([150.0, 350.0, 5000.0])
    pod.host_changed = world.loop.time()
    world.note(f"{pod.name}: host memory is {pod.host_limit:.0f} MiB")


def _replay(world: World) -> None:
    """Somebody sends an old request again, as it was or under its old name with another body."""
    sent = [request for trainer in world.trainers for request in trainer.sent]
    if not sent:
        return
    request = world.chance.choice(sent)
    other = world.chance.random() < 0.3 and IDEMPOTENCY_KEY in request.headers and request.method == "POST"
    if other:
        ttl = {"ttlSeconds": 77.0} if "ttlSeconds" in (request.body or {}) else {"level": 1}
        version = {"version": 999999} if request.path.endswith(":reclaim") else ttl
        request = replace(request, body={**(request.body or {}), **version})
    world.spawn(_sent_again(world, request, other))


async def _sent_again(world: World, request: Request, other: bool) -> None:
    known = request.headers.get(IDEMPOTENCY_KEY) in world.entries
    try:
        answer = await world.to_gateway(request)
    except ConnectionError:
        return
    if isinstance(answer, Reply):
        world.note(f"sent again: {request.method} {request.path}: {answer.status}")
        world.checks.replayed(request, answer, known and other)


STRIKES: dict[str, Callable[[World], None]] = {
    "agent": _agent,
    "engine": _engine,
    "launcher": _launcher,
    "operator": _operator,
    "trainer": _trainer,
    "stop": _stop,
    "jump": _jump,
    "cut": _cut,
    "curse": _curse,
    "host": _host,
    "replay": _replay,
}
