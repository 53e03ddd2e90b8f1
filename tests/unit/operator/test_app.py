"""Whole operators: real processes, real files, real signals; only the engines are pretended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_operator.drive import proc

from .given import until
from .house import GROUP, House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """An operator for all the tests that leave it as they found it: a start costs seconds."""
    made = House(tmp_path_factory.mktemp("lasting"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def shared(lasting: House) -> House:
    lasting.serving()
    assert lasting.record().lease is None
    return lasting


@pytest.fixture
def serving(house: House) -> House:
    house.start()
    house.serving()
    return house


def test_from_the_first_start_to_an_end_that_leaves_nothing(house: House) -> None:
    house.start()
    house.serving()
    lease = house.lent()
    assert house.phases() == ["Asleep"]
    house.publish(lease, 1)
    back = house.perform("reclaim", lease, version=1)
    assert back["result"]["weightVersion"] == 1
    until(lambda: not (Path(lease["handoff"]) / "v1").exists())
    members = house.processes()
    assert len(members) == 3, "agent, launcher, engine"
    assert house.stop(signal.SIGINT) == 0
    assert house.processes() == []
    assert not house.layout.memory.exists()
    assert not (house.home / "operator.json").exists()
    assert not (house.layout.member("chat-0") / "state.json").exists()
    assert house.record().epoch == 3
    token = (house.home / "token").read_text()
    assert token not in house.log
    assert token not in (house.layout.member("chat-0") / "agent.log").read_text()


def test_a_second_operator_is_refused_and_told_of_the_first(shared: House) -> None:
    assert shared.operator is not None
    command = [sys.executable, "-m", "ebbtide_operator", "--home", str(shared.home), "-f", str(shared.file)]
    second = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=30)
    assert second.returncode == 2
    assert f"pid {shared.operator.pid}" in second.stderr
    assert "http://127.0.0.1:" in second.stderr
    shared.serving()


def test_what_the_caller_can_correct_is_said_and_starts_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("apiVersion: ebbtide.dev/v1alpha1\nkind: InferenceServer\nmetadata: {name: x}\nspec: {model: {}}\n")
    command = [sys.executable, "-m", "ebbtide_operator", "--home", str(tmp_path / "home"), "-f", str(bad)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert "bad.yaml:4" in ended.stderr
    assert "spec.model.source" in ended.stderr
    assert not (tmp_path / "home").exists()


def test_shutdown_by_the_gateway(serving: House) -> None:
    serving.acquire()
    waiting = serving.acquire(holder="other")
    assert serving.call("POST", "/v1/shutdown").status_code == 202
    assert serving.operator is not None
    assert serving.operator.wait(30) == 0
    assert serving.processes() == []
    assert waiting["stage"] == "Queued"


def test_members_are_left_and_adopted_when_asked(house: House) -> None:
    house.start("--keep")
    house.serving()
    before = (house.pid("agent"), house.pid("launcher"), house.engine())
    assert house.stop() == 0
    assert len(house.processes()) == 3
    house.start(file=False)
    house.serving()
    assert (house.pid("agent"), house.pid("launcher"), house.engine()) == before
    house.stop()
    assert house.processes() == []


def test_sigkill_of_the_operator_while_lent(serving: House) -> None:
    lease = serving.lent()
    before = (serving.pid("agent"), serving.pid("launcher"), serving.engine())
    serving.kill()
    serving.start()
    until(lambda: serving.phases() == ["Asleep"])
    assert (serving.pid("agent"), serving.pid("launcher"), serving.engine()) == before
    renewed = serving.call("PUT", f"{GROUP}/lease/{lease['id']}")
    assert (renewed.status_code, renewed.json()["stage"]) == (200, "Lent")
    serving.publish(lease, 4)
    assert serving.perform("reclaim", lease, version=4)["result"]["weightVersion"] == 4


@pytest.mark.parametrize("verb", ["begin-update", "commit-update", "wake-kv"])
def test_sigkill_of_the_operator_on_the_way_back(serving: House, verb: str) -> None:
    lease = serving.lent()
    serving.publish(lease, 2)
    serving.script(delay={verb: 0.6})
    asked = serving.ask("reclaim", lease, version=2).json()["id"]
    until(lambda: f"chat-0: {verb}" in serving.log)
    serving.kill()
    serving.start()
    done = serving.ended_of(asked)
    assert done["status"] == "Done", done
    assert done["result"]["weightVersion"] == 2
    assert serving.record().lease is None


def test_a_stray_engine_of_a_crash_is_ended(serving: House) -> None:
    engine, launcher, agent = serving.engine(), serving.pid("launcher"), serving.pid("agent")
    serving.kill()
    for pid in (launcher, agent):
        os.kill(pid, signal.SIGKILL)
    until(lambda: proc.read(launcher) is None and proc.read(agent) is None)
    assert proc.read(engine) is not None
    serving.start()
    serving.serving()
    assert proc.read(engine) is None
    assert serving.engine() != engine


def test_members_that_nobody_wants_any_more_are_ended_at_the_start(serving: House) -> None:
    serving.kill()
    assert serving.processes() != []
    serving.file.write_text(serving.file.read_text().replace("name: chat", "name: other"))
    serving.start()
    until(lambda: {path.name for path in serving.layout.members.iterdir()} >= {"chat-0", "other-0"})
    assert proc.of_member(str(serving.layout.member("chat-0") / "member.json")) == []
    assert not serving.layout.member_memory("chat-0").exists()
    assert [path.name for path in serving.layout.servers.iterdir()] == ["other.yaml"]


def test_an_engine_that_dies_is_started_again(shared: House) -> None:
    engine = shared.engine()
    os.kill(engine, signal.SIGKILL)
    until(lambda: shared.engine() != engine)
    shared.serving()


def test_an_engine_that_dies_while_lent_waits_for_its_turn(shared: House) -> None:
    lease = shared.lent()
    os.kill(shared.engine(), signal.SIGKILL)
    until(lambda: shared.phases() == ["PendingDevice"])
    time.sleep(0.3)
    assert shared.phases() == ["PendingDevice"]
    done = shared.perform("reclaim", lease)
    assert done["status"] == "Done"
    shared.serving()


def test_an_agent_that_dies_comes_back_to_where_the_engine_is(shared: House) -> None:
    lease = shared.lent()
    agent, engine = shared.pid("agent"), shared.engine()
    os.kill(agent, signal.SIGKILL)
    until(lambda: shared.pid("agent") != agent and shared.phases() == ["Asleep"])
    assert shared.engine() == engine
    assert shared.perform("reclaim", lease)["status"] == "Done"


def test_a_trainer_that_is_killed_is_followed_by_the_engine(shared: House) -> None:
    hold = "held = bytearray(800 << 20); held[::4096] = b'x' * len(held[::4096]); print('held', flush=True); input()"
    command = [sys.executable, "-c", hold]
    trainer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert trainer.stdout is not None
        trainer.stdout.readline()
        lease = shared.lent(pid=trainer.pid, ttlSeconds=4)
        until(lambda: shared.record().lease and shared.record().lease.stage == "OwnerLost")  # type: ignore[union-attr]
        assert shared.phases() == ["Asleep"]
        seen = shared.call("GET", GROUP).json()
        assert seen["owner"] == "trainer"
        held = [holder["mib"] for holder in seen["devices"][0]["holders"] if "trainer" in holder["name"]]
        assert held[0] > 700
    finally:
        trainer.kill()
        trainer.communicate()
    shared.serving()
    assert shared.call("GET", GROUP).json()["owner"] == "engine"
    assert shared.ask("reclaim", lease).json()["code"] == "STALE_EPOCH"
    assert shared.call("PUT", f"{GROUP}/lease/{lease['id']}").json()["code"] == "STALE_EPOCH"


def test_a_damaged_lease_record_makes_no_second_owner(serving: House) -> None:
    lease = serving.lent(ttlSeconds=600)
    serving.kill()
    path = serving.layout.groups / "actor.json"
    path.write_text(path.read_text()[:100])
    serving.start()
    until(lambda: serving.phases() == ["Asleep"])
    group = until(lambda: (seen := serving.call("GET", GROUP).json())["epoch"] > 2 and seen)
    assert (group["owner"], group["lease"]["stage"]) == ("unknown", "OwnerLost")
    assert serving.ask("reclaim", lease).json()["code"] == "STALE_EPOCH"
    assert "cannot be used" in serving.log
    assert list(serving.layout.groups.glob("actor.json.corrupt-*"))
    assert serving.phases() == ["Asleep"]


def test_a_program_that_does_not_stay_up_is_told(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.layout.member("chat-0").mkdir(parents=True)
    house.layout.member("chat-0").joinpath("state.json").write_text("not json")
    house.layout.member_memory("chat-0").mkdir(parents=True)
    try:
        house.start()
        state = until(lambda: (seen := house.server())["reason"] == "ProcessTrouble" and seen, 30)
        assert "agent of chat-0 ended 3 times in a row" in state["message"]
        assert "agent.log" in state["message"]
        house.layout.member("chat-0").joinpath("state.json").unlink()
        house.serving()
        assert house.stop() == 0
    finally:
        house.close()


def test_the_clients_files_say_where_everything_is(shared: House) -> None:
    facts = json.loads((shared.home / "operator.json").read_text())
    assert facts["pid"] == shared.operator.pid  # type: ignore[union-attr]
    assert Path(facts["tokenPath"]).read_text()
    assert Path(facts["tokenPath"]).stat().st_mode & 0o777 == 0o600
    assert Path(facts["memory"]).stat().st_mode & 0o777 == 0o700
