"""The local driver by itself: what it shows of members, and what it does to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.errors import ErrorCode
from ebbtide_api.server import Devices, InferenceServer
from ebbtide_api.state import Phase
from ebbtide_api.verbs import GrantRequest, LeaseStage, OperationStatus, SleepRequest, Verb
from ebbtide_operator.drive import birth, local, proc
from ebbtide_operator.drive.layout import Layout
from ebbtide_operator.drive.local import LocalDriver
from ebbtide_operator.plan import Call, GroupRecord, LeaseRecord, MemberView, ReturnIntent, Serve, TrainerView
from ebbtide_operator.settings import Settings
from ebbtide_operator.specs import view

from tests.unit.plan.test_leases import lent

from .given import server_of

pytestmark = pytest.mark.anyio


class Driven:
    """A driver, and the changes it told of."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self.driver = LocalDriver(settings, layout)
        self.changes: list[str] = []
        self.driver.listen(self.changes.append)

    async def open(self, *servers: InferenceServer) -> bool:
        self.want(*servers)
        return await self.driver.open()

    def want(self, *servers: InferenceServer) -> None:
        self.driver.want({server.name: server for server in servers})

    def view(self, name: str = "chat-0") -> MemberView:
        return next(member for member in self.driver.members("actor") if member.name == name)

    async def until(self, holds: Callable[[], object], seconds: float = 20.0) -> None:
        due = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < due, f"not within {seconds} s: {self.driver.members('actor')}"
            await asyncio.sleep(0.01)

    async def up(self, name: str = "chat-0") -> None:
        self.driver.ensure(name, name.rsplit("-", 1)[0], int(name[-1]))
        await self.until(lambda: self.phase(name) is Phase.PENDING_DEVICE)

    def phase(self, name: str = "chat-0") -> Phase | None:
        state = self.view(name).state
        return state.phase if state and state.boot else None

    async def granted(self) -> None:
        await self.up()
        assert await self.driver.ask(call(Verb.GRANT, GrantRequest(boot=1))) is not None
        await self.until(lambda: self.phase() is Phase.RUNNING)


def call(verb: Verb = Verb.SLEEP, body: Any = None, key: str = "k") -> Call:
    return Call("chat-0", verb, body or SleepRequest(), f"{verb}-x-b1-v0", f"{verb}-{key}", 1, "", 30.0)


@pytest.fixture
async def driven(
    settings: Settings, layout: Layout, server: InferenceServer, anyio_backend: str
) -> AsyncIterator[Driven]:
    made = Driven(settings, layout)
    assert await made.open(server)
    yield made
    await made.driver.stop(keep=False)


async def test_a_member_from_birth_to_end(driven: Driven, layout: Layout) -> None:
    await driven.up()
    view = driven.view()
    assert (view.server, view.ordinal, view.managed, view.outdated, view.trouble) == ("chat", 0, True, False, "")
    assert "actor" in driven.changes
    config = str(layout.member("chat-0") / "member.json")
    assert len(proc.of_member(config)) == 2
    driven.driver.end("chat-0")
    driven.driver.end("chat-0")
    assert driven.driver.members("actor") != ()
    await driven.until(lambda: driven.driver.members("actor") == ())
    assert proc.of_member(config) == []
    assert not layout.member_memory("chat-0").exists()
    assert layout.member("chat-0").joinpath("agent.log").exists()


async def test_a_call_makes_a_member_busy_until_its_effect_is_seen(driven: Driven) -> None:
    await driven.granted()
    driven.driver.call(call())
    await asyncio.sleep(0)  # the call begins; it may be over before a poll would look
    assert driven.view().busy == "sleep-x-b1-v0"
    refused = await driven.driver.ask(call(key="other"))
    assert refused is not None
    assert refused.error is not None
    assert refused.error.code is ErrorCode.OPERATION_IN_PROGRESS
    await driven.until(lambda: driven.view().busy is None)
    assert driven.phase() is Phase.ASLEEP
    answers = driven.view().answers("sleep-x-b1-v0")
    assert [answer.operation.status for answer in answers if answer.operation] == [OperationStatus.DONE]


async def test_a_changed_spec_is_noticed_and_taken(driven: Driven, model: Path, layout: Layout) -> None:
    await driven.up()
    before = proc.of_member(str(layout.member("chat-0") / "member.json"))
    driven.want(server_of(model, engine={"extraArgs": ["--dtype=float32"]}))
    assert driven.view().outdated
    driven.driver.ensure("chat-0", "chat", 0)
    assert not driven.view().outdated
    await driven.until(lambda: (driven.phase() is Phase.PENDING_DEVICE) and driven.view().state.boot == 2)  # type: ignore[union-attr]
    after = proc.of_member(str(layout.member("chat-0") / "member.json"))
    assert not {process.pid for process in before} & {process.pid for process in after}
    config = json.loads((layout.member("chat-0") / "member.json").read_text())
    assert config["extraArgs"] == ["--dtype=float32"]


async def test_what_changes_nothing_of_a_member_restarts_nothing(driven: Driven, model: Path) -> None:
    await driven.up()
    driven.want(server_of(model, replicas=2, power="Asleep"))
    assert not driven.view().outdated


async def test_an_agent_that_hangs_is_not_believed_for_ever(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "REFRESH_PATIENCE", 0.1)
    await driven.granted()
    agent = json.loads((driven.driver.layout.member("chat-0") / "agent.pid").read_text())["pid"]
    os.kill(agent, signal.SIGSTOP)
    began = time.monotonic()
    await driven.driver.refresh("actor")
    assert time.monotonic() - began < 2
    assert driven.phase() is Phase.RUNNING, "who only looks does not decide that an agent is gone"
    os.kill(agent, signal.SIGKILL)
    await driven.until(lambda: driven.view().state is None)
    assert driven.view().last is not None
    await driven.until(lambda: driven.phase() is Phase.RUNNING)


async def test_somebody_else_who_answers_on_the_port_is_not_the_member(driven: Driven) -> None:
    await driven.up()
    member = driven.driver._members["chat-0"]
    state = driven.view().state
    assert state is not None
    stranger = state.model_copy(update={"instance": state.instance.model_copy(update={"uid": "stranger"})})
    member.agent.hear(stranger)
    assert driven.view().state is None
    assert driven.view().last == state


async def test_an_answer_that_was_overtaken_is_no_news(driven: Driven) -> None:
    await driven.up()
    member = driven.driver._members["chat-0"]
    state = driven.view().state
    assert state is not None
    newer = state.model_copy(update={"state_version": state.state_version + 5})
    member.agent.hear(newer)
    member.agent.hear(state)
    assert driven.view().state == newer


async def test_a_member_that_cannot_be_set_up_says_so_and_tries_again(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "SETUP_RETRY", 0.05)

    def full(*_: object) -> birth.Birth:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ebbtide_operator.drive.member.prepare", full)
        driven.driver.ensure("chat-0", "chat", 0)
        await driven.until(lambda: "No space left" in driven.view().trouble)
        assert driven.view().state is None
    await driven.until(lambda: driven.phase() is Phase.PENDING_DEVICE)
    assert driven.view().trouble == ""


async def test_members_are_left_for_the_next_driver(
    driven: Driven, settings: Settings, layout: Layout, server: InferenceServer
) -> None:
    await driven.granted()
    before = {process.pid for process in proc.of_member(str(layout.member("chat-0") / "member.json"))}
    await driven.driver.stop(keep=True)
    second = Driven(settings, layout)
    assert not await second.open(server)
    second.driver.ensure("chat-0", "chat", 0)
    await second.until(lambda: second.phase() is Phase.RUNNING)
    after = {process.pid for process in proc.of_member(str(layout.member("chat-0") / "member.json"))}
    assert after == before
    await second.driver.stop(keep=False)
    assert not layout.memory.exists()


async def test_handed_off_versions_are_retired_up_to_one(driven: Driven, layout: Layout) -> None:
    handoff = layout.handoff("actor")
    for name in ("v1", "v2", "v10", ".v3.tmp", "vault"):
        (handoff / name).mkdir(parents=True)
    driven.driver.retire("actor", 2)
    await driven.until(lambda: not (handoff / "v2").exists())
    assert sorted(path.name for path in handoff.iterdir()) == [".v3.tmp", "v10", "vault"]
    driven.driver.retire("unknown", 2)
    assert driven.driver.handoff("actor") == str(handoff)


async def test_sources_are_the_folders_of_a_record_that_are_there(driven: Driven, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    back = ReturnIntent(version=2, source=str(tmp_path / "v2"), deadline=1)
    lease = LeaseRecord(id="l", holder="h", ttl_seconds=1, stage=LeaseStage.RETURNING, back=back)
    record = GroupRecord(group="actor", serve=Serve(version=1, source=str(tmp_path / "v1")), lease=lease)
    assert driven.driver.sources(record) == {str(tmp_path / "v1")}
    (tmp_path / "v2").mkdir()
    assert driven.driver.sources(record) == {str(tmp_path / "v1"), str(tmp_path / "v2")}
    assert driven.driver.sources(GroupRecord(group="actor")) == frozenset()


async def test_streamed_versions_are_in_every_members_own_memory(driven: Driven, layout: Layout, model: Path) -> None:
    await driven.up()
    driven.driver.want({"chat": server_of(model, weights={"handoff": "Stream"})})
    assert driven.driver.streams("actor")
    assert not driven.driver.streams("critic")
    assert driven.driver.handoff("actor") == "handoff"
    assert set(driven.driver.agents("actor")) == {"chat-0"}
    assert driven.driver.agents("critic") == {}
    record = GroupRecord(group="actor", serve=Serve(version=2, source="handoff/v2"))
    assert driven.driver.sources(record) == frozenset()
    received = layout.member_memory("chat-0") / "handoff"
    for name in ("v1", "v2", ".v3.part"):
        (received / name).mkdir(parents=True)
    assert driven.driver.sources(record) == {"handoff/v2"}
    driven.driver.retire("actor", 2)
    await driven.until(lambda: not (received / "v2").exists())
    assert [path.name for path in received.iterdir()] == [".v3.part"]


async def test_trainers_are_measured_by_their_pid(driven: Driven) -> None:
    start = driven.driver.started_at(os.getppid())
    lease = LeaseRecord(id="l", holder="h", ttl_seconds=1, pid=os.getppid(), pid_start=start or 0)

    async def measured(**changes: Any) -> TrainerView | None:
        return await driven.driver.trainer(GroupRecord(group="actor", lease=lease.model_copy(update=changes)))

    seen = await measured()
    assert seen is not None
    assert (seen.pid, seen.alive) == (os.getppid(), True)
    gone = await measured(id="gone", pid_start=1)
    assert gone is not None
    assert (gone.alive, gone.used_mib) == (False, 0)
    assert await measured(pid=None) is None
    assert await driven.driver.trainer(GroupRecord(group="actor")) is None
    for number in range(local.TRAINERS_KEPT + 3):
        await measured(id=f"l{number}")
    assert len(driven.driver._trainers) == local.TRAINERS_KEPT
    assert driven.driver.started_at(2**22 + 3) is None


async def test_a_call_to_a_member_that_is_not_up_has_no_outcome(driven: Driven) -> None:
    await driven.up()
    await driven.driver._members["chat-0"].agent.close()
    assert await driven.driver.ask(replace(call(), key="x")) is None


@pytest.fixture
def on_a_gpu(server: InferenceServer) -> InferenceServer:
    devices = server.spec.colocation.model_copy(update={"devices": Devices(env="CUDA_VISIBLE_DEVICES")})
    return server.model_copy(update={"spec": server.spec.model_copy(update={"colocation": devices})})


async def test_what_a_process_holds_of_a_gpu_is_unknown_while_it_lives(
    driven: Driven, on_a_gpu: InferenceServer
) -> None:
    """Its own memory was measured: that is not the GPU's. A process that is gone has freed all of it."""
    driven.want(on_a_gpu)
    start = driven.driver.started_at(os.getppid())
    lease = LeaseRecord(id="l", holder="h", ttl_seconds=1, pid=os.getppid(), pid_start=start or 0)
    record = GroupRecord(group="actor", lease=lease)
    alive = await driven.driver.trainer(record)
    assert alive is not None
    assert (alive.pid, alive.alive, alive.used_mib) == (os.getppid(), True, None)
    gone = await driven.driver.trainer(record.with_lease(id="gone", pid_start=1))
    assert gone is not None
    assert (gone.alive, gone.used_mib) == (False, 0)
    elsewhere = await driven.driver.trainer(record.model_copy(update={"group": "of-cpus"}))
    assert elsewhere is not None
    assert elsewhere.used_mib


async def test_a_lost_process_keeps_a_gpu_of_unknown_size_until_it_is_gone(
    driven: Driven, on_a_gpu: InferenceServer
) -> None:
    """A budget of 0 is no limit: any need fits into it, whatever the holder keeps."""
    driven.want(on_a_gpu)
    start = driven.driver.started_at(os.getppid())
    sim = lent(pid=os.getppid(), pid_start=start)
    sim.servers["chat"] = replace(sim.servers["chat"], budget_mib=view(on_a_gpu).budget_mib)
    sim.now += 31
    for _ in range(10):
        sim.trainer = await driven.driver.trainer(sim.record)
        sim.step()
    assert (sim.stage, sim.phases) == (LeaseStage.OWNER_LOST, {Phase.ASLEEP})
    sim.record = sim.record.with_lease(id="later", pid_start=1)
    sim.renewed["later"] = sim.now - 31
    for _ in range(20):
        sim.trainer = await driven.driver.trainer(sim.record)
        sim.step()
    assert (sim.stage, sim.phases) == (None, {Phase.RUNNING})
