"""From a server to what members and plans are told; and births."""

from __future__ import annotations

import json
import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.member import Engine, MemberConfig, Parking
from ebbtide_operator.drive import birth, proc
from ebbtide_operator.drive.layout import Layout
from ebbtide_operator.drive.processes import mark_of
from ebbtide_operator.plan import Idle, Turns
from ebbtide_operator.specs import budget_of, check, check_changes, member_config, view

from .given import server_of

PORTS = (18000, 18400)


def test_a_servers_view(model: Path) -> None:
    spec: dict[str, Any] = {
        "replicas": 3,
        "sleep": {"level": "Discarded", "settle": "50ms", "drain": {"timeout": "5s"}},
    }
    seen = view(server_of(model, **spec))
    assert (seen.name, seen.replicas, seen.awake, seen.level, seen.settle) == ("chat", 3, 3, 2, 0.05)
    assert (seen.drain.timeout, seen.budget_mib, seen.device) == (5, 1000, "cpu0")
    assert seen.member_names == ("chat-0", "chat-1", "chat-2")
    assert view(server_of(model, power="Asleep")).awake == 0
    assert seen.idle is None
    idle = {"idle": {"after": "5m", "deeperAfter": "1h"}, "holdFor": "10s"}
    assert view(server_of(model, sleep=idle)).idle == Idle(after=300, deeper=3600, wakes=True, hold=10)
    never = {"idle": {"after": "5m"}, "wakeOnRequest": False}
    assert view(server_of(model, sleep=never)).idle == Idle(after=300, deeper=None, wakes=False, hold=0)
    assert seen.turns is None
    turns = {"group": "shared", "turns": {"minimum": "20s"}}
    assert view(server_of(model, colocation=turns, sleep={"holdFor": "5s"})).turns == Turns(minimum=20, hold=5)
    assert view(server_of(model, colocation={"turns": {}})).turns == Turns(minimum=10, hold=0)


def test_without_a_declared_budget_the_machine_is_the_device(model: Path) -> None:
    server = server_of(model, colocation={})
    assert budget_of(server) > 1 << 30
    assert server.group == "chat"
    gpu = server_of(model, colocation={"devices": {"env": "NVIDIA_VISIBLE_DEVICES"}})
    assert (budget_of(gpu), view(gpu).device) == (0, "gpu:NVIDIA_VISIBLE_DEVICES")


def test_what_a_member_is_told(model: Path, layout: Layout) -> None:
    spec: dict[str, Any] = {
        "engine": {"port": 9100, "extraArgs": ["--enforce-eager"], "env": [{"name": "A", "value": "1"}]},
        "sleep": {"parking": "OnSleep"},
        "replicas": 2,
    }
    born = birth.prepare(server_of(model, **spec), 1, layout, PORTS)
    told = MemberConfig.model_validate_json(born.path.read_bytes())
    assert told == born.config
    assert (told.name, told.ordinal, told.group, told.data_port) == ("chat-1", 1, "actor", 9101)
    assert (told.extra_args, told.env, told.engine) == (["--enforce-eager"], {"A": "1"}, Engine.CPU)
    assert (told.parking, told.device_budget) == (Parking.ON_SLEEP, 1000 << 20)
    assert told.home == str(layout.member("chat-1"))
    for secret in (told.secret_path, told.token_path):
        assert stat.S_IMODE(Path(secret).stat().st_mode) == 0o600
    assert Path(told.secret_path).read_text() != Path(told.token_path).read_text()
    assert Path(told.handoff).is_dir()
    assert stat.S_IMODE(layout.member("chat-1").stat().st_mode) == 0o700


def test_a_second_birth_keeps_everything_that_matters(model: Path, layout: Layout) -> None:
    server = server_of(model)
    first = birth.prepare(server, 0, layout, PORTS)
    second = birth.prepare(server, 0, layout, PORTS)
    assert second == first
    assert birth.wanted(server, 0, layout, first)
    changed = server_of(model, engine={"extraArgs": ["--dtype=float32"]})
    assert not birth.wanted(changed, 0, layout, first)
    third = birth.prepare(changed, 0, layout, PORTS)
    assert third.digest != first.digest
    assert (third.config.uid, third.token) == (first.config.uid, first.token)


def test_a_damaged_configuration_is_written_anew(model: Path, layout: Layout) -> None:
    born = birth.prepare(server_of(model), 0, layout, PORTS)
    born.path.write_text("{")
    again = birth.prepare(server_of(model), 0, layout, PORTS)
    assert json.loads(again.path.read_text())["name"] == "chat-0"


def test_with_a_new_memory_folder_a_member_starts_from_its_model(model: Path, layout: Layout) -> None:
    born = birth.prepare(server_of(model), 0, layout, PORTS)
    state = layout.member("chat-0") / "state.json"
    state.write_text('{"epoch": 3}')
    birth.prepare(server_of(model), 0, layout, PORTS)
    assert state.exists()
    layout.member_memory("chat-0").rename(layout.memory / "gone")
    birth.prepare(server_of(model), 0, layout, PORTS)
    assert not state.exists()
    assert born.path.exists()


@pytest.mark.parametrize(("told", "warned"), [('{"epoch": 3}', ""), ('{"committed": {"version": 7}}', "version 7")])
def test_lost_weights_are_told_if_there_were_any(
    told: str, warned: str, model: Path, layout: Layout, caplog: pytest.LogCaptureFixture
) -> None:
    birth.prepare(server_of(model), 0, layout, PORTS)
    (layout.member("chat-0") / "state.json").write_text(told)
    layout.member_memory("chat-0").rmdir()
    birth.prepare(server_of(model), 0, layout, PORTS)
    assert bool(caplog.messages) == bool(warned)
    assert warned in caplog.text


def test_a_port_that_somebody_else_took_is_left_to_them(model: Path, layout: Layout) -> None:
    born = birth.prepare(server_of(model), 0, layout, PORTS)
    with socket.create_server(("127.0.0.1", born.config.agent_port)):
        assert birth.prepare(server_of(model), 0, layout, PORTS).config.agent_port != born.config.agent_port


def test_a_port_that_our_agent_of_before_holds_stays(model: Path, layout: Layout) -> None:
    born = birth.prepare(server_of(model), 0, layout, PORTS)
    me = proc.read(os.getpid())
    assert me is not None
    mark = mark_of(layout.member("chat-0"), "agent")
    mark.write_text(json.dumps({"pid": me.pid, "start": me.start, "digest": born.digest}))
    with socket.create_server(("127.0.0.1", born.config.agent_port)):
        assert birth.prepare(server_of(model), 0, layout, PORTS).config == born.config


def test_a_free_port_is_the_same_while_it_is_free() -> None:
    port = birth.free_port("chat-0", PORTS)
    assert port == birth.free_port("chat-0", PORTS)
    assert birth.free_port("chat-1", PORTS) != port
    with socket.create_server(("127.0.0.1", port)):
        assert birth.free_port("chat-0", PORTS) != port
        with pytest.raises(OSError, match="no free port"):
            birth.free_port("chat-0", (port, port + 1))


def refused(servers: list[Any], new: list[Any] | None = None) -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        check({server.name: server for server in servers}, servers if new is None else new)
    return caught.value


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    error = refused([server_of(tmp_path / "nowhere")])
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "spec.model.source" in error.message


def test_ports_and_budgets_of_servers_must_fit(model: Path) -> None:
    first = server_of(model, replicas=3)
    assert "port 8002" in refused([first, server_of(model, "other", engine={"port": 8002})]).message
    assert "port 65536" in refused([server_of(model, engine={"port": 65535}, replicas=2)]).message
    bigger = {"group": "actor", "devices": {"cpu": {"memory": "2000Mi"}}}
    other = server_of(model, "other", engine={"port": 9000}, colocation=bigger)
    assert "share a device" in refused([first, other]).message
    elsewhere = server_of(model, "other", engine={"port": 9000}, colocation={**bigger, "group": "critic"})
    check({"chat": first, "other": elsewhere}, [first, elsewhere])


def test_the_servers_of_a_group_take_weights_in_one_way(model: Path) -> None:
    first = server_of(model, weights={"handoff": "Stream"})
    for name in ("Stream", "SharedMemory", "", "None"):
        weights = {"handoff": name} if name else {}
        other = server_of(model, "other", engine={"port": 9000}, weights=weights)
        if name in ("Stream", "None"):
            check({"chat": first, "other": other}, [first, other])
        else:
            assert "spec.weights.handoff" in refused([first, other]).message


def test_streamed_weights_are_received_in_the_members_own_memory(model: Path, tmp_path: Path) -> None:
    layout = Layout.of(tmp_path / "home", tmp_path)
    streamed = server_of(model, weights={"handoff": "Stream"})
    own = member_config(streamed, 1, layout, uid="u", agent_port=1)
    assert own.handoff == own.received_dir == str(layout.member_memory("chat-1") / "handoff")
    shared = member_config(server_of(model), 1, layout, uid="u", agent_port=1)
    assert (shared.handoff, shared.received_dir) == (str(layout.handoff("actor")), f"{shared.memory}/handoff")


def test_what_is_not_honoured_is_refused(model: Path) -> None:
    error = refused([server_of(model, weights={"handoff": "Disk"})])
    assert error.code is ErrorCode.NOT_YET_SUPPORTED


def test_a_group_never_changes(model: Path) -> None:
    before = {"chat": server_of(model)}
    check_changes(before, [server_of(model, replicas=2)])
    with pytest.raises(EbbtideError, match=r"colocation\.group"):
        check_changes(before, [server_of(model, colocation={"group": "critic"})])


def test_every_home_has_its_own_memory_folder(tmp_path: Path) -> None:
    one, two = (Layout.of(tmp_path / name, tmp_path) for name in ("a", "b"))
    assert one.memory != two.memory
    assert Layout.of(tmp_path / "a", tmp_path) == one
    assert replace(one, memory=two.memory).member_memory("x").parent == two.memory / "members"
