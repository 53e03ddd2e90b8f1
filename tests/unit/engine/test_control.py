"""The control verbs: order, refusals before anything is touched, and failures with their code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.state import KV, EngineState, Weights
from ebbtide_runtime.engine.control import Control

from tests.support.engine_client import FakeAdapter, FakeClient

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def make(ranks: int = 2) -> tuple[Control, FakeClient, FakeAdapter]:
    client, adapter = FakeClient(ranks), FakeAdapter()
    return Control(client, adapter), client, adapter


def refused(work: Coroutine[Any, Any, EngineState]) -> EbbtideError:
    with pytest.raises(EbbtideError) as caught:
        run(work)
    return caught.value


def test_the_state_holds_every_rank() -> None:
    control, _, _ = make()
    state = run(control.state())
    assert [rank.rank for rank in state.ranks] == [0, 1]
    assert (state.paused, state.weight_version, state.kv_blocks, state.unfinished) == (False, 0, 40, 0)


def test_the_version_is_the_lowest_of_the_ranks() -> None:
    control, client, _ = make()
    client.ranks[0].version = 4
    assert run(control.state()).weight_version == 0


@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
@pytest.mark.parametrize("clear", [True, False])
def test_pause_passes_mode_and_clearing_on(mode: str, clear: bool) -> None:
    control, client, _ = make()
    assert run(control.pause(mode, clear)).paused
    assert client.calls[0] == f"pause {mode} {clear}"


def test_pause_returns_when_the_last_outputs_are_through() -> None:
    control, client, _ = make()
    client.requests = 5
    assert run(control.pause("abort", True)).unfinished == 0


def test_pause_keep_does_not_wait_for_frozen_requests() -> None:
    control, client, _ = make()
    client.requests = 5
    assert run(control.pause("keep", False)).unfinished == 4


def test_an_unknown_mode_is_named() -> None:
    control, client, _ = make()
    error = refused(control.pause("Wait", True))
    assert (error.code, error.details["modes"], client.calls) == (
        ErrorCode.INVALID_MODE,
        ["wait", "abort", "keep"],
        [],
    )


def test_an_abort_overtakes_a_pause_that_waits() -> None:
    """The drain deadline: the agent gives up waiting and aborts what remains."""

    async def main() -> None:
        control, client, _ = make()
        client.draining.clear()
        waiting = asyncio.create_task(control.pause("wait", True))
        await asyncio.sleep(0)
        await control.pause("abort", True)
        assert not waiting.done()
        client.draining.set()
        assert (await waiting).paused

    run(main())


@pytest.mark.parametrize(("level", "weights"), [(1, Weights.PARKED), (2, Weights.DISCARDED)])
def test_sleep_prepares_every_rank_and_then_releases(level: int, weights: Weights) -> None:
    control, client, _ = make()
    state = run(control.sleep(level))
    assert client.calls[:2] == ["ebbtide_prepare", f"sleep {level} abort"]
    assert {(rank.weights, rank.kv) for rank in state.ranks} == {(weights, KV.DISCARDED)}
    assert {rank.copied_bytes for rank in state.ranks} == ({100} if level == 1 else {0})


def test_no_rank_sleeps_when_one_cannot_park() -> None:
    control, client, _ = make()
    client.memories[1].failing = "prepare"
    error = refused(control.sleep(1))
    assert (error.code, error.status) == (ErrorCode.HOST_MEMORY_INSUFFICIENT, 507)
    assert error.details["ranks"] == ["rank 1: OSError: prepare failed"]
    assert "sleep 1 abort" not in client.calls
    assert {rank.weights for rank in client.ranks} == {Weights.RESIDENT}


def test_a_rank_that_cannot_release_is_a_fault() -> None:
    control, client, _ = make()
    client.memories[0].failing = "release_weights"
    error = refused(control.sleep(1))
    assert (error.code, error.details["ranks"]) == (
        ErrorCode.ENGINE_FAULTED,
        ["rank 0: OSError: release_weights failed"],
    )


@pytest.mark.parametrize("level", [0, 3, -1])
def test_an_unknown_level_is_named(level: int) -> None:
    control, client, _ = make()
    assert refused(control.sleep(level)).code is ErrorCode.LEVEL_UNSUPPORTED
    assert client.calls == []


def test_waking_goes_tag_by_tag() -> None:
    control, client, _ = make()
    run(control.sleep(1))
    state = run(control.wake("weights"))
    assert {(rank.weights, rank.kv) for rank in state.ranks} == {(Weights.RESIDENT, KV.DISCARDED)}
    state = run(control.wake("kv_cache"))
    assert {(rank.weights, rank.kv) for rank in state.ranks} == {(Weights.RESIDENT, KV.RESIDENT)}
    assert client.calls.count("wake ['weights']") == 1


@pytest.mark.parametrize("tag", ["", "kv", "scheduling", "Weights"])
def test_an_unknown_tag_is_named(tag: str) -> None:
    control, client, _ = make()
    error = refused(control.wake(tag))
    assert (error.code, error.details["tags"], client.calls) == (
        ErrorCode.INVALID_TAG,
        ["weights", "kv_cache"],
        [],
    )


def test_a_failed_wake_is_a_fault_with_the_rank() -> None:
    control, client, _ = make()
    run(control.sleep(1))
    client.memories[1].failing = "restore_weights"
    error = refused(control.wake("weights"))
    assert (error.code, error.details["ranks"]) == (
        ErrorCode.ENGINE_FAULTED,
        ["rank 1: OSError: restore_weights failed"],
    )


def test_an_old_parking_failure_fails_nothing_else() -> None:
    control, _, _ = make()
    assert run(control.park()).ranks[0].last_error == "a copy failed long ago"
    run(control.sleep(2))


def test_resume_needs_weights_and_kv() -> None:
    control, client, _ = make()
    run(control.sleep(1))
    assert refused(control.resume()).code is ErrorCode.WEIGHTS_NOT_COMMITTED
    run(control.wake("weights"))
    assert refused(control.resume()).code is ErrorCode.ILLEGAL_TRANSITION
    run(control.wake("kv_cache"))
    assert not run(control.resume()).paused
    assert client.calls.count("resume") == 1


def test_resume_refuses_weights_that_are_not_committed() -> None:
    control, client, _ = make()
    run(control.reload("/good", 3))
    assert refused(control.resume()).code is ErrorCode.WEIGHTS_NOT_COMMITTED
    assert "resume" not in client.calls


def test_reload_leaves_a_pending_version() -> None:
    control, _, _ = make()
    state = run(control.reload("/good", 3))
    assert {(rank.version, rank.pending_version) for rank in state.ranks} == {(0, 3)}


def test_a_torn_reload_is_a_fault() -> None:
    control, _, _ = make()
    error = refused(control.reload("/bad", 3))
    assert (error.code, error.details["ranks"][0]) == (
        ErrorCode.ENGINE_FAULTED,
        "rank 0: ValueError: /bad is torn",
    )


def test_commit_empties_caches_and_names_the_version() -> None:
    control, client, adapter = make()
    run(control.reload("/good", 3))
    state = run(control.commit(3))
    assert (state.weight_version, client.version, adapter.resets) == (3, "3", 1)
    assert {rank.pending_version for rank in state.ranks} == {None}


def test_commit_needs_the_version_on_every_rank() -> None:
    control, client, adapter = make()
    run(control.reload("/good", 3))
    client.ranks[1].reload(4, lambda: None)
    assert refused(control.commit(3)).code is ErrorCode.WEIGHTS_NOT_COMMITTED
    assert (adapter.resets, client.version) == (0, "0")


def test_commit_of_nothing_is_refused() -> None:
    control, _, _ = make()
    assert refused(control.commit(1)).code is ErrorCode.WEIGHTS_NOT_COMMITTED


def test_commit_of_what_is_committed_is_done() -> None:
    control, _, _ = make()
    assert run(control.commit(0)).weight_version == 0


def test_commit_of_half_loaded_weights_is_refused() -> None:
    control, _, _ = make()
    refused(control.reload("/bad", 3))
    assert refused(control.commit(3)).code is ErrorCode.WEIGHTS_NOT_COMMITTED


def test_commit_waits_for_no_request() -> None:
    control, client, adapter = make()
    run(control.reload("/good", 3))
    adapter.refuses = True
    assert refused(control.commit(3)).code is ErrorCode.ILLEGAL_TRANSITION
    assert {rank.pending for rank in client.ranks} == {3}


@pytest.mark.parametrize("verb", ["state", "park", "resume"])
def test_a_dead_engine_is_a_fault(verb: str) -> None:
    control, client, _ = make()
    client.dead = True
    error = refused(getattr(control, verb)())
    assert (error.code, "EngineCore died" in error.message) == (ErrorCode.ENGINE_FAULTED, True)


def test_memory_verbs_run_one_at_a_time() -> None:
    async def main() -> list[str]:
        control, client, _ = make(1)
        await asyncio.gather(control.sleep(1), control.wake("weights"), control.wake("kv_cache"))
        return client.calls

    calls = run(main())
    order = ["sleep 1 abort", "wake ['weights']", "wake ['kv_cache']"]
    assert [call for call in calls if call in order] == order
    assert calls.index("wake ['weights']") > calls.index("ebbtide_state")


@pytest.mark.parametrize(
    ("call", "verb"),
    [
        ("collective_rpc", lambda control: control.reload("/good", 1)),
        ("collective_rpc", lambda control: control.state()),
        ("pause_generation", lambda control: control.pause("wait", True)),
        ("resume_generation", lambda control: control.resume()),
        ("sleep", lambda control: control.sleep(1)),
        ("wake_up", lambda control: control.wake("weights")),
        ("update_weight_version", lambda control: control.commit(0)),
    ],
)
def test_a_core_that_is_killed_in_a_call_answers_it(
    call: str, verb: Callable[[Control], Coroutine[Any, Any, EngineState]]
) -> None:
    """vLLM's client leaves such a call open, and its server then waits for the call before it ends."""

    async def killed() -> EngineState:
        control, client, _ = make()
        client.hangs = call
        async with asyncio.timeout(5):
            return await verb(control)

    error = refused(killed())
    assert error.code is ErrorCode.ENGINE_FAULTED
    assert "died" in error.message
