"""Each id runs once, old epochs are refused, one thing at a time, and callers name the engine that they mean."""

from __future__ import annotations

import threading
from typing import Any

import httpx2
import pytest
from ebbtide_api.state import Phase
from ebbtide_api.verbs import Operation, OperationStatus, Verb
from ebbtide_runtime.native import Field

from tests.support.agents import NO_ROOTS, Caller, RefusedError
from tests.support.fake_engine import Lie, until
from tests.support.rig import SLEEP, Member, Stream, sleep, to_running, to_weights

Pair = tuple[Member, Caller]


def refused(caller: Caller, *call: Any, **how: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        caller.post(*call, **how)
    return caught.value


# Ids


def test_the_same_call_has_the_same_answer(running: Pair) -> None:
    member, caller = running
    first = caller.do(Verb.SLEEP, SLEEP, key="op-1")
    again = caller.post(Verb.SLEEP, SLEEP, key="op-1")
    assert again == first
    assert member.engine.calls.count("sleep") == 1
    assert caller.state().cycle == 1


def test_the_same_call_while_it_runs_is_the_same_operation(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    first = caller.post(Verb.SLEEP, SLEEP, key="op-1")
    again = caller.post(Verb.SLEEP, SLEEP, key="op-1")
    assert (again.id, again.status) == (first.id, OperationStatus.RUNNING)
    member.engine.end_requests()
    assert caller.wait("op-1").status is OperationStatus.DONE
    stream.end()


def test_the_same_call_at_the_same_time_runs_once(running: Pair) -> None:
    member, _ = running
    answers: list[Operation] = []

    def call() -> None:
        mine = member.caller()
        answers.append(mine.ended(Verb.SLEEP, SLEEP, key="op-1"))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(answers) == 6
    assert {answer.status for answer in answers} == {OperationStatus.DONE}
    assert member.engine.calls.count("sleep") == 1


@pytest.mark.parametrize(("verb", "body"), [(Verb.SLEEP, {"level": 2}), (Verb.RESUME, {})])
def test_the_same_id_for_another_call_is_refused(running: Pair, verb: Verb, body: dict[str, Any]) -> None:
    _, caller = running
    caller.do(Verb.SLEEP, SLEEP, key="op-1")
    error = refused(caller, verb, body, key="op-1")
    assert (error.status, error.code) == (422, "OPERATION_MISMATCH")


def test_the_same_id_for_another_call_is_refused_while_it_runs(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    caller.post(Verb.SLEEP, SLEEP, key="op-1")
    assert refused(caller, Verb.SLEEP, {"level": 2}, key="op-1").status == 422
    member.engine.end_requests()
    caller.wait("op-1")
    stream.end()


def test_a_refused_call_leaves_its_id_free(running: Pair) -> None:
    _, caller = running
    assert refused(caller, Verb.WAKE_KV, {"x": 1}, key="op-1").status == 400
    assert refused(caller, Verb.RELOAD, key="op-1").status == 409
    assert caller.do(Verb.SLEEP, SLEEP, key="op-1").status is OperationStatus.DONE


def test_a_noop_is_remembered_too(running: Pair) -> None:
    _, caller = running
    first = caller.post(Verb.RESUME, key="op-1")
    assert first.noop
    sleep(caller)
    assert caller.post(Verb.RESUME, key="op-1") == first
    assert caller.state().phase is Phase.ASLEEP


def test_a_failed_operation_stays_failed(running: Pair) -> None:
    member, caller = running
    member.engine.lie("sleep", Lie.NOTHING)
    failed = caller.ended(Verb.SLEEP, SLEEP, key="op-1")
    assert caller.post(Verb.SLEEP, SLEEP, key="op-1") == failed
    assert caller.ended(Verb.SLEEP, SLEEP, key="op-2").status is OperationStatus.DONE


def test_an_unknown_operation_is_not_found(running: Pair) -> None:
    _, caller = running
    answer = caller.http.get("/v1/operations/nobody", params={"wait": "5"})
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


def test_waiting_returns_when_it_is_done_or_the_wait_is_over(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    caller.post(Verb.SLEEP, SLEEP, key="op-1")
    early = caller.http.get("/v1/operations/op-1", params={"wait": "0.01"}).json()
    assert early["status"] == "Running"
    member.engine.end_requests()
    assert caller.wait("op-1").status is OperationStatus.DONE
    stream.end()


# Epochs


def test_an_old_epoch_is_refused_whatever_it_asks(running: Pair) -> None:
    member, caller = running
    caller.do(Verb.RESUME, epoch=7)
    assert member.page.get(Field.EPOCH) == 7
    for verb in Verb:
        error = refused(caller, verb, _body(member, verb), epoch=6)
        assert (error.status, error.code) == (412, "STALE_EPOCH"), verb
        assert error.body.details == {"epoch": 6, "current": 7}
    assert caller.state().phase is Phase.RUNNING


def _body(member: Member, verb: Verb) -> dict[str, Any]:
    bodies: dict[Verb, dict[str, Any]] = {
        Verb.GRANT: {"boot": 1},
        Verb.BEGIN_UPDATE: {"version": 1, "source": {"path": "/x"}},
        Verb.COMMIT_UPDATE: {"version": 1},
    }
    return bodies.get(verb, {})


def test_an_old_epoch_does_not_get_an_old_answer(running: Pair) -> None:
    """The dead trainer's late calls get 412, not what they were once answered."""
    _, caller = running
    caller.do(Verb.RESUME, key="op-1", epoch=3)
    caller.do(Verb.RESUME, epoch=4)
    assert refused(caller, Verb.RESUME, key="op-1", epoch=3).status == 412


def test_a_refused_call_of_a_new_epoch_ends_the_old_one(running: Pair) -> None:
    _, caller = running
    assert refused(caller, Verb.RELOAD, epoch=9).status == 409
    assert refused(caller, Verb.RESUME, epoch=8).status == 412
    assert caller.state().epoch == 9


def leading(member: Member, leader: int | None) -> Caller:
    """A caller of an operator's epoch."""
    caller = member.caller()
    if leader is not None:
        caller.http.headers["Ebbtide-Leader"] = str(leader)
    return caller


def test_an_older_leaders_calls_are_refused(running: Pair) -> None:
    member, caller = running
    assert caller.state().leader == 0
    leading(member, 4).do(Verb.RESUME)
    assert caller.state().leader == 4
    for older in (3, None):
        error = refused(leading(member, older), Verb.RESUME)
        assert (error.status, error.code) == (412, "STALE_EPOCH")
        assert error.body.details == {"leader": older or 0, "current": 4}
        assert leading(member, older).state().leader == 4, "whoever looks is not refused"
    leading(member, 5).do(Verb.RESUME)


def test_an_older_leader_sends_no_weights_and_drops_none(running: Pair) -> None:
    member, _ = running
    begin = {"files": [{"name": "a", "length": 1}]}

    def asked(leader: int, method: str, path: str = "", **how: Any) -> int:
        http = leading(member, leader).http
        return http.request(method, f"/v1/weights/7{path}", headers={"Ebbtide-Epoch": "1"}, **how).status_code

    assert asked(4, "POST", json=begin) == 200
    assert asked(3, "POST", json=begin) == 412
    assert asked(3, "PUT", "/a?offset=0", content=b"x") == 412
    assert asked(3, "POST", "/publish", json={"length": 1, "crc32c": 1}) == 412
    assert asked(3, "DELETE") == 412
    assert leading(member, 3).http.delete("/v1/weights/7").status_code == 412
    assert (member.root / "memory/handoff/.v7.part").is_dir()
    assert leading(member, 4).http.delete("/v1/weights/7").status_code == 200
    assert not (member.root / "memory/handoff/.v7.part").exists()


def test_a_leader_outlives_the_agent(member: Member) -> None:
    caller = member.start()
    to_running(caller)
    leading(member, 6).do(Verb.RESUME)
    member.kill()
    again = member.start()
    again.until(Phase.RUNNING)
    assert again.state().leader == 6
    assert refused(leading(member, 5), Verb.RESUME).status == 412


def test_a_leader_that_is_no_number_is_named(running: Pair) -> None:
    member, caller = running
    caller.http.headers["Ebbtide-Leader"] = "me"
    assert refused(caller, Verb.RESUME).code == "INVALID_REQUEST"
    assert member.engine.process is not None


def test_an_epoch_outlives_the_agent(member: Member) -> None:
    caller = member.start()
    to_running(caller)
    caller.do(Verb.RESUME, epoch=5)
    member.kill()
    caller = member.start()
    assert caller.state().epoch == 5
    assert refused(caller, Verb.RESUME, epoch=4).status == 412
    assert member.page.get(Field.EPOCH) == 5


# One at a time


def test_only_one_thing_at_a_time(running: Pair) -> None:
    member, caller = running
    stream = Stream(member, 100_000)
    caller.post(Verb.SLEEP, SLEEP, key="op-1")
    for verb in Verb:
        error = refused(caller, verb, _body(member, verb))
        assert (error.status, error.code) == (409, "OPERATION_IN_PROGRESS"), verb
        assert error.body.details["operation"] == "op-1"
        assert error.body.retryable
    assert caller.state().operation == "op-1"
    member.engine.end_requests()
    caller.wait("op-1")
    assert caller.state().operation is None
    stream.end()


def test_many_callers_one_winner(running: Pair) -> None:
    member, caller = running
    codes: list[str] = []

    def call(number: int) -> None:
        mine = member.caller()
        try:
            codes.append(mine.ended(Verb.SLEEP, SLEEP, key=f"op-{number}").status.value)
        except RefusedError as error:
            codes.append(error.code)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert set(codes) <= {"Done", "OPERATION_IN_PROGRESS"}
    assert "Done" in codes
    assert member.engine.calls.count("sleep") == 1
    assert caller.state().phase is Phase.ASLEEP


# Instances


def test_a_caller_that_means_another_engine_is_told(running: Pair) -> None:
    _, caller = running
    vector = caller.state()
    name = f"{vector.instance.uid}:{vector.instance.pid}:{vector.instance.start_time}"
    caller.do(Verb.RESUME, instance=name)
    error = refused(caller, Verb.SLEEP, SLEEP, instance=f"{name}1")
    assert (error.status, error.code) == (410, "INSTANCE_REPLACED")
    assert error.body.details == {"old": f"{name}1", "new": name}
    assert caller.state().phase is Phase.RUNNING


def test_the_engine_that_was_meant_is_gone_after_a_restart(running: Pair) -> None:
    member, caller = running
    vector = caller.state()
    name = f"{vector.instance.uid}:{vector.instance.pid}:{vector.instance.start_time}"
    member.engine.die()
    until(lambda: caller.state().phase is Phase.PENDING_DEVICE)
    assert refused(caller, Verb.SLEEP, SLEEP, instance=name).status == 410


# Who may call, and what is malformed


def test_everything_but_health_and_metrics_needs_the_token(running: Pair) -> None:
    member, caller = running
    base = f"http://127.0.0.1:{member.config.agent_port}"
    calls = [("GET", "/v1/state"), ("GET", "/v1/operations/x"), *(("POST", f"/v1/{verb}") for verb in Verb)]
    for method, path in calls:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic agent-token-0123456789"}):
            answer = httpx2.request(
                method, base + path, headers=headers, content=b"{broken", trust_env=False, verify=NO_ROOTS
            )
            assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED"), path
    assert caller.state().epoch == 1


def test_what_does_not_exist_is_not_found(running: Pair) -> None:
    _, caller = running
    for method, path in (("GET", "/"), ("GET", "/v1/sleep"), ("POST", "/v1/explode"), ("GET", "/docs")):
        answer = caller.http.request(method, path)
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), path


def test_a_malformed_call_is_refused_by_field(running: Pair) -> None:
    _, caller = running
    error = refused(caller, Verb.SLEEP, {"drain": {"mode": "Perhaps"}})
    assert error.status == 400
    assert error.body.details["errors"][0]["field"] == "drain.mode"
    answer = caller.http.post("/v1/sleep", json={})
    assert (answer.status_code, answer.json()["details"]["field"]) == (400, "Idempotency-Key")


def test_a_body_of_megabytes_is_not_read(running: Pair) -> None:
    _, caller = running
    headers = {"Idempotency-Key": "k", "Ebbtide-Epoch": "1"}
    answer = caller.http.post("/v1/sleep", content=b" " * (1 << 20), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


# What everybody may see


def test_health_and_metrics_need_no_token(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    base = f"http://127.0.0.1:{member.config.agent_port}"
    health = httpx2.get(f"{base}/health", trust_env=False, verify=NO_ROOTS)
    assert (health.status_code, health.json()["phase"], health.json()["admission"]) == (200, "Asleep", False)
    text = httpx2.get(f"{base}/metrics", trust_env=False, verify=NO_ROOTS).text
    for line in (
        'ebbtide_member_phase{member="chat-0",phase="Asleep"} 1.0',
        'ebbtide_member_phase{member="chat-0",phase="Running"} 0.0',
        'ebbtide_member_operation_seconds_count{member="chat-0",outcome="done",verb="sleep"} 1.0',
        'ebbtide_member_phase_seconds_count{member="chat-0",phase="Draining"} 1.0',
        'ebbtide_member_sleeps{member="chat-0"} 1.0',
        'ebbtide_member_inflight_requests{member="chat-0"} 0.0',
        'ebbtide_member_used_bytes{member="chat-0"} 1.048576e+08',
    ):
        assert line in text, line


def test_refusals_are_counted(running: Pair) -> None:
    _, caller = running
    refused(caller, Verb.RELOAD)
    text = caller.http.get("/metrics").text
    assert 'ebbtide_member_refusals_total{code="ILLEGAL_TRANSITION",member="chat-0"} 1.0' in text


def test_the_state_is_told_when_it_changes(running: Pair) -> None:
    member, caller = running
    until(lambda: caller.state().parked_mib > 0)
    before = caller.state()
    assert caller.state(wait_version=before.state_version, wait=0.05).state_version == before.state_version
    found: list[Phase] = []

    def watch() -> None:
        other = before
        while other.phase is not Phase.WEIGHTS_RESIDENT:
            other = caller.state(wait_version=other.state_version, wait=5)
            found.append(other.phase)

    thread = threading.Thread(target=watch)
    thread.start()
    to_weights(member.caller())
    thread.join(20)
    assert not thread.is_alive()
    assert Phase.ASLEEP in found


def test_an_old_version_is_answered_at_once(running: Pair) -> None:
    _, caller = running
    assert caller.state(wait_version=0, wait=30).phase is Phase.RUNNING
