"""No 200 before its effect; an effect that did not come is an error that says where every member is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from ebbtide_api.state import Phase

from tests.shims.house import ASLEEP, MEMBERS, ShimHouse, checkpoint, together
from tests.shims.sequences import asleep, loaded, serves, stopped, weights_awake
from tests.support.polling import eventually


def ok(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


def error(answer: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, body
    assert body["message"]
    assert body["nextAction"]
    return body


# What was measured


def test_a_sleep_answers_with_what_it_freed(house: ShimHouse, client: httpx2.Client) -> None:
    body = ok(client.post("/sleep?level=1"))
    asleep(house)
    measured = body["ebbtide"]
    assert (body["status"], body["level"], measured["noop"]) == ("sleeping", 1, False)
    (device,) = measured["devices"]
    assert (device["freedMiB"], device["residualMiB"]) == (500.0, 200.0)
    assert {each["usedMiB"]["cpu0"] for each in measured["members"].values()} == {float(ASLEEP)}
    assert ok(client.get("/is_sleeping")) == {"is_sleeping": True}


def test_a_level_that_was_not_asked_for_is_told_as_it_is(house: ShimHouse, client: httpx2.Client) -> None:
    assert ok(client.post("/sleep?level=2"))["level"] == 2
    assert ok(client.post("/sleep?level=1"))["level"] == 2, "it sleeps deeper than asked, and says so"
    body = ok(client.post("/wake_up?tags=weights"))
    assert {each["weights"] for each in body["ebbtide"]["members"].values()} == {"discarded"}
    ok(client.post("/collective_rpc", json={"method": "reload_weights"}))
    assert {each["weights"] for each in ok(client.get("/is_paused"))["ebbtide"]["members"].values()} == {"resident"}
    ok(client.post("/wake_up?tags=kv_cache"))
    serves(house)


def test_a_sleep_that_freed_nothing_is_no_200(house: ShimHouse, client: httpx2.Client) -> None:
    house.lie("chat-1", sleep="NOTHING")
    answer = client.post("/release_memory_occupation", json={})
    assert answer.status_code == 500, answer.text
    assert answer.json()["details"]["member"] == "chat-1"
    assert answer.json()["nextAction"]
    eventually(lambda: house.phases() == ["Running"] * 2, 30)
    assert house.call("GET", "/v1/groups/actor").json()["owner"] == "engine"


@pytest.mark.parametrize("lie", ["ERROR", "DIES"])
def test_weights_that_did_not_wake_are_no_200(house: ShimHouse, client: httpx2.Client, lie: str) -> None:
    ok(client.post("/sleep"))
    house.lie("chat-0", wake=lie)
    answer = client.post("/wake_up?tags=weights")
    assert answer.status_code >= 500, answer.text
    assert "chat-0" in answer.json()["message"]
    # The client tries again, as the error says, and is told the truth until it is done.
    eventually(lambda: client.post("/wake_up").status_code == 200, 60)
    serves(house)


def test_weights_that_one_member_refuses_serve_on_none(house: ShimHouse, client: httpx2.Client, tmp_path: Path) -> None:
    before = house.engine_versions()
    bad = checkpoint(tmp_path / "bad", 7, norm=np.zeros(3, dtype=np.float32))
    ok(client.post("/sleep"))
    ok(client.post("/wake_up?tags=weights"))
    body = error(client.post("/update_weights_from_disk", json={"model_path": str(bad)}), 422, "MANIFEST_INVALID")
    assert body["details"]["tensor"] == "norm"
    weights_awake(house)
    good = checkpoint(tmp_path / "good", 8)
    ok(client.post("/update_weights_from_disk", json={"model_path": str(good)}))
    ok(client.post("/wake_up?tags=kv_cache"))
    assert house.engine_versions()[0][0] > before[0][0]


def test_only_one_member_fails_to_load_and_no_other_keeps_it(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    before = house.engine_versions()
    assert before[0] == before[1]
    ok(client.post("/sleep"))
    ok(client.post("/wake_up?tags=weights"))
    house.lie("chat-1", reload="NOTHING")
    answer = client.post("/update_weights_from_disk", json={"model_path": str(checkpoint(tmp_path / "w", 9))})
    assert answer.status_code >= 500, answer.text
    assert answer.json()["details"]["member"] == "chat-1"
    assert house.engine_version("chat-0") == before[0]
    eventually(lambda: client.post("/wake_up").status_code == 200, 60)
    assert house.engine_versions() == before


def test_an_engine_that_dies_of_its_sleep_is_told_of_and_comes_back_whole(
    house: ShimHouse, client: httpx2.Client
) -> None:
    house.lie("chat-1", sleep="DIES_AFTER")
    answer = client.post("/sleep")
    if answer.status_code == 200:
        assert answer.json()["ebbtide"]["members"]["chat-1"]["usedMiB"]["cpu0"] <= ASLEEP
        body = error(client.post("/wake_up?tags=weights"), 409, "ILLEGAL_TRANSITION")
        assert "Wake everything" in body["nextAction"]
        assert not any(house.admits(member) for member in MEMBERS)
    else:
        assert "chat-1" in answer.json()["message"], "whether it died in the sleep or after it is a matter of luck"
    eventually(lambda: client.post("/wake_up").status_code == 200, 60)
    serves(house)


def test_a_paused_update_that_one_engine_could_not_take_is_an_error_and_the_old_weights_serve(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    before = house.engine_versions()
    house.lie("chat-1", reload="ERROR")
    answer = client.post("/areal_update_weights", json={"model_path": str(checkpoint(tmp_path / "w", 9))})
    assert answer.status_code >= 500, answer.text
    assert answer.json()["details"]["member"] == "chat-1", answer.text
    serves(house)
    assert house.engine_versions() == before


# Again, and all at once


def test_every_verb_may_be_called_twice(house: ShimHouse, client: httpx2.Client, tmp_path: Path) -> None:
    weights = {"model_path": str(checkpoint(tmp_path / "w", 3)), "weight_version": "twice"}
    steps = [
        ("/release_memory_occupation", {}),
        ("/resume_memory_occupation", {"tags": ["weights"]}),
        ("/update_weights_from_disk", weights),
        ("/resume_memory_occupation", {"tags": ["kv_cache"]}),
        ("/pause_generation", {}),
        ("/continue_generation", {}),
    ]
    for path, body in steps:
        first, second = ok(client.post(path, json=body)), ok(client.post(path, json=body))
        assert (first["ebbtide"]["noop"], second["ebbtide"]["noop"]) == (False, True), path
        assert first["ebbtide"]["members"] == second["ebbtide"]["members"], path
    assert ok(client.get("/get_weight_version"))["weight_version"] == "twice"
    ok(client.post("/update_weights_from_disk", json=weights))
    serves(house)


def test_all_ranks_of_a_trainer_make_one_transition(house: ShimHouse, client: httpx2.Client, tmp_path: Path) -> None:
    weights = {"model_path": str(checkpoint(tmp_path / "w", 4))}
    calls: list[tuple[str, Any, str]] = [
        ("/sleep", None, "lend"),
        ("/wake_up?tags=weights", None, "wake-weights"),
        ("/update_weights_from_disk", weights, "begin-update"),
        ("/wake_up?tags=kv_cache", None, "reclaim"),
        ("/pause", None, "pause"),
        ("/resume", None, "resume"),
    ]
    for path, body, verb in calls:
        before = house.transitions(verb)
        answers = together(4, lambda path=path, body=body: client.post(path, json=body))  # type: ignore[misc]
        assert [answer.status_code for answer in answers] == [200] * 4, [answer.text for answer in answers]
        assert [answer.json()["ebbtide"]["noop"] for answer in answers].count(False) == 1, path
        assert len(house.transitions(verb) - before) == 1, path
    serves(house)


def test_the_same_folder_with_other_weights_is_another_version(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    folder, versions = tmp_path / "w", []
    for seed in (1, 2):
        ok(client.post("/areal_update_weights", json={"model_path": str(checkpoint(folder, seed))}))
        versions.append(house.engine_versions()[0][0])
    assert versions[1] > versions[0]
    serves(house)


# Order


def test_what_comes_in_the_wrong_order_is_refused_and_says_what_to_do(
    house: ShimHouse, client: httpx2.Client, tmp_path: Path
) -> None:
    weights = {"model_path": str(checkpoint(tmp_path / "w", 5))}
    ok(client.post("/sleep"))
    body = error(client.post("/wake_up?tags=kv_cache"), 409, "ILLEGAL_TRANSITION")
    assert "weights first" in body["nextAction"]
    asleep(house)
    body = error(client.post("/update_weights_from_disk", json=weights), 409, "ILLEGAL_TRANSITION")
    assert "weights first" in body["nextAction"]
    asleep(house)
    ok(client.post("/wake_up?tags=weights"))
    ok(client.post("/update_weights_from_disk", json=weights))
    error(client.post("/sleep"), 409, "ILLEGAL_TRANSITION")
    loaded(house)


def test_weights_awake_go_back_to_sleep(house: ShimHouse, client: httpx2.Client) -> None:
    ok(client.post("/sleep"))
    ok(client.post("/wake_up?tags=weights"))
    assert ok(client.get("/is_sleeping")) == {"is_sleeping": True}, "the KV sleeps"
    assert ok(client.post("/sleep"))["ebbtide"]["noop"] is False
    asleep(house)


def test_a_cache_is_flushed_where_there_is_one(house: ShimHouse, client: httpx2.Client) -> None:
    assert ok(client.post("/flush_cache"))["ebbtide"]["noop"] is False
    serves(house)
    ok(client.post("/pause?mode=keep"))
    assert ok(client.post("/reset_prefix_cache"))["ebbtide"]["noop"] is False, "a pause that keeps empties nothing"
    assert ok(client.post("/reset_prefix_cache"))["ebbtide"]["noop"] is True
    stopped(house)


def test_the_kv_alone_is_released_and_comes_back(house: ShimHouse, client: httpx2.Client) -> None:
    ok(client.post("/release_kv_cache_memory"))
    house.all({Phase.WEIGHTS_RESIDENT}, 300, admits=False)
    assert ok(client.post("/release_memory_occupation", json={"tags": ["kv_cache"]}))["ebbtide"]["noop"] is True
    ok(client.post("/wake_up?tags=kv_cache"))
    serves(house)


# Somebody else


def test_a_wake_up_is_no_200_while_somebody_else_holds_the_memory(house: ShimHouse, client: httpx2.Client) -> None:
    lease = house.lent(holder="another trainer")
    body = error(client.post("/wake_up"), 403, "NOT_LEASE_HOLDER")
    assert "another trainer" in body["message"]
    assert set(body["details"]["members"]) == set(MEMBERS)
    house.give_back(lease)
    assert ok(client.post("/wake_up"))["ebbtide"]["noop"] is True


def test_a_second_trainer_waits_for_the_first(house: ShimHouse, client: httpx2.Client) -> None:
    lease, answers = house.lent(holder="another trainer"), list[httpx2.Response]()
    thread = threading.Thread(target=lambda: answers.append(client.post("/sleep")))
    thread.start()
    eventually(lambda: house.call("GET", "/v1/groups/actor").json()["queue"], 20)
    assert answers == []
    house.call("DELETE", f"/v1/groups/actor/lease/{lease['id']}", headers={"Ebbtide-Epoch": str(lease["epoch"])})
    thread.join(60)
    ok(answers[0])
    asleep(house)


def test_a_proxy_that_dies_gives_its_loan_up_and_the_next_one_tells_the_truth(house: ShimHouse) -> None:
    url = house.proxy("--ttl", "4s", "--holder", "short-lived")
    with httpx2.Client(base_url=url, trust_env=False, timeout=60) as client:
        ok(client.post("/sleep"))
    house.kill_proxy()
    with httpx2.Client(base_url=house.url, trust_env=False, timeout=60) as client:
        error(client.post("/wake_up"), 403, "NOT_LEASE_HOLDER")
        asleep(house)
        eventually(lambda: client.post("/wake_up").status_code == 200, 60)
        serves(house)
