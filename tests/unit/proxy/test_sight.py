"""What is said of a group by what was measured of its members, and never more."""

from __future__ import annotations

from typing import Any

import pytest
from ebbtide.proxy.sight import Sight
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, Inflight, Instance, Phase, StateVector
from ebbtide_api.verbs import GroupState, ServerState


def member(name: str = "chat-0", phase: Phase = Phase.RUNNING, **more: Any) -> StateVector:
    told = {"server": "chat", "group": "actor", "admission": phase is Phase.RUNNING, "instance": Instance(uid=name)}
    return StateVector(name=name, phase=phase, **{**told, **more})


def sight(*members: StateVector, replicas: int | None = None) -> Sight:
    count = len(members) if replicas is None else replicas
    told = {"model": "m", "ready": True, "serving": True, "replicas": count, "members": list(members)}
    group = GroupState(name="actor", owner="engine", epoch=1, servers=["chat"])
    return Sight(group, (ServerState(name="chat", group="actor", **told),))


def test_a_member_that_does_not_answer_makes_nothing_true() -> None:
    seen = sight(member(phase=Phase.ASLEEP, kv=KV.DISCARDED), replicas=2)
    assert not seen.whole
    assert not seen.all_in({Phase.ASLEEP})
    assert not seen.empty
    assert not seen.serves
    assert "some members do not answer" in seen.odd(ErrorCode.ENGINE_FAULTED, "x").message
    with pytest.raises(EbbtideError):
        _ = seen.version


def test_a_group_without_servers_is_nowhere() -> None:
    seen = Sight(GroupState(name="actor", owner="engine", epoch=1, servers=[]), ())
    assert not seen.whole
    assert not seen.all_in(set(Phase))
    assert "no member answers" in seen.odd(ErrorCode.ENGINE_FAULTED, "x").message


def test_who_is_on_the_way_is_not_there() -> None:
    assert sight(member()).all_in({Phase.RUNNING})
    assert not sight(member(operation="op")).all_in({Phase.RUNNING})
    assert not sight(member(), member("chat-1", Phase.PAUSED)).all_in({Phase.RUNNING})


def test_a_group_serves_when_every_server_does() -> None:
    assert sight(member()).serves
    assert sight(member(), member("chat-1", Phase.ASLEEP)).serves, "a replica may rest"
    assert not sight(member(phase=Phase.ASLEEP)).serves
    assert not sight(member(admission=False)).serves
    assert not sight(member(), member("chat-1", Phase.FAULTED)).serves


def test_a_version_is_what_all_members_have() -> None:
    assert sight(member(committed_version=3), member("chat-1", committed_version=3)).version == 3
    loaded = [member(f"chat-{n}", Phase.UPDATING, committed_version=3, pending_version=4) for n in (0, 1)]
    assert (sight(*loaded).version, sight(*loaded).loaded) == (4, 4)
    mixed = sight(loaded[0], member("chat-1", Phase.WEIGHTS_RESIDENT, committed_version=3))
    assert mixed.loaded is None
    with pytest.raises(EbbtideError) as caught:
        _ = mixed.version
    assert caught.value.code is ErrorCode.MEMBERSHIP_CHANGED
    assert caught.value.details["members"] == {"chat-0": "Updating", "chat-1": "WeightsResident"}


def test_the_models_own_weights_that_are_read_again_are_no_version() -> None:
    assert sight(member(phase=Phase.UPDATING, pending_version=0)).loaded is None


def test_caches_are_empty_where_the_kv_has_no_memory() -> None:
    assert sight(member(kv=KV.DISCARDED), member("chat-1", kv=KV.DISCARDED)).empty
    assert not sight(member(kv=KV.DISCARDED), member("chat-1", kv=KV.UNKNOWN)).empty


def test_requests_in_flight_are_summed() -> None:
    busy = Inflight(running=1, waiting=2, transfers=3)
    seen = sight(member(inflight=busy), member("chat-1", inflight=busy))
    assert seen.inflight == 12
    wire = seen.wire()
    assert wire["members"]["chat-0"]["inflight"] == 3
    assert (wire["serving"], wire["lease"], wire["epoch"]) == (True, None, 1)
