"""New weights are checked whole before the engine hears of them; the old ones serve on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from ebbtide_api.state import KV, Phase, Weights
from ebbtide_api.verbs import Verb
from ebbtide_runtime.agent.checkpoint import copy_headers

from tests.contract.agent.conftest import Make
from tests.support.agents import MIB, Caller, RefusedError, faster
from tests.support.fake_engine import Lie
from tests.support.rig import Member, Stream, back, cycle, sleep, to_committed, to_running, to_updating, to_weights

Pair = tuple[Member, Caller]
FILE = "model-00001.safetensors"


def tensor(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(entry for entry in manifest["tensors"] if entry["name"] == "model.norm.weight")


def torn(path: Path, _manifest: dict[str, Any]) -> None:
    os.truncate(path / FILE, 300)


def missing(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["tensors"].remove(tensor(manifest))


def unknown(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["name"] = "model.other"


def shape(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["shape"] = [2, 4]


def dtype(_path: Path, manifest: dict[str, Any]) -> None:
    tensor(manifest)["dtype"] = "I32"


def flipped(path: Path, manifest: dict[str, Any]) -> None:
    data = bytearray((path / FILE).read_bytes())
    data[tensor(manifest)["offset"] + 3] ^= 0x10
    (path / FILE).write_bytes(data)


def version(_path: Path, manifest: dict[str, Any]) -> None:
    manifest["version"] += 1


def link(path: Path, _manifest: dict[str, Any]) -> None:
    (path / FILE).rename(path.parent / "data")
    (path / FILE).symlink_to(path.parent / "data")


SPOILED = {
    "TORN": torn,
    "TENSOR_MISSING": missing,
    "TENSOR_UNKNOWN": unknown,
    "SHAPE_MISMATCH": shape,
    "DTYPE_MISMATCH": dtype,
    "CHECKSUM_MISMATCH": flipped,
    "VERSION_MISMATCH": version,
    "UNREADABLE": link,
}


def test_the_headers_that_the_launcher_left_stand_for_a_model_out_of_sight(running: Pair) -> None:
    """In a pod the model is in the engine's container alone."""
    member, caller = running
    model = Path(member.config.model)
    copy_headers(str(model), Path(member.config.headers_dir))
    model.rename(model.with_name("elsewhere"))
    cycle(member, caller, 1)
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(2, missing))
    assert error.details["reason"] == "TENSOR_MISSING"


def test_spoiled_weights_are_refused_by_name_and_the_old_ones_serve_on(running: Pair) -> None:
    member, caller = running
    cycle(member, caller, 1)
    to_weights(caller)
    for number, (reason, spoil) in enumerate(SPOILED.items(), start=2):
        before = len(member.engine.calls)
        error = caller.fail(Verb.BEGIN_UPDATE, member.publish(number, spoil))
        assert (error.code, error.details["reason"]) == ("MANIFEST_INVALID", reason)
        vector = caller.until(Phase.WEIGHTS_RESIDENT)
        assert (vector.weight_version, vector.pending_version, vector.committed_version) == (1, None, 1)
        assert "reload" not in member.engine.calls[before:]
        assert sorted(path.name for path in Path(member.config.weights_dir).iterdir()) == ["v1"]
    back(caller)
    assert caller.state().weight_version == 1
    assert Stream(member, 2).end() == "end length"


def test_a_tensor_is_named(running: Pair) -> None:
    member, caller = running
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(1, flipped))
    assert error.details["tensor"] == "model.norm.weight"


def test_weights_that_do_not_exist(running: Pair) -> None:
    member, caller = running
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, {"version": 1, "source": {"path": str(member.root / "nowhere")}})
    assert (error.code, error.details["reason"]) == ("MANIFEST_INVALID", "UNREADABLE")


def test_an_original_that_cannot_be_read_refuses_every_update(make: Make) -> None:
    member = make(model="org/gone")
    caller = member.start()
    to_running(caller)
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(1))
    assert error.details["reason"] == "UNREADABLE"
    assert "original" in error.message


def test_a_copy_is_counted_before_it_is_made(make: Make) -> None:
    member = make(host_memory_limit=200 * MIB)
    caller = member.start()
    to_running(caller)
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(1))
    assert (error.code, error.details["availableMiB"]) == ("HOST_MEMORY_INSUFFICIENT", 0.0)
    assert caller.state().phase is Phase.WEIGHTS_RESIDENT
    back(caller)


def test_an_ingest_that_takes_too_long_touches_nothing(make: Make) -> None:
    member = make()
    caller = member.start(faster(ingest_s=0.0001, slowest_bytes_s=1e15))
    to_running(caller)
    to_weights(caller)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(1))
    assert (error.code, error.details["phase"]) == ("PHASE_DEADLINE", "ingest")
    assert caller.until(Phase.WEIGHTS_RESIDENT).boot == 1
    back(caller)


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.COMMITTED, Phase.VERIFYING])
def test_updates_begin_wherever_nothing_runs(running: Pair, phase: Phase) -> None:
    member, caller = running
    if phase is Phase.PAUSED:
        caller.do(Verb.PAUSE)
    else:
        to_committed(member, caller)
    if phase is Phase.VERIFYING:
        caller.do(Verb.WAKE_KV)
    caller.do(Verb.BEGIN_UPDATE, member.publish(2))
    caller.do(Verb.COMMIT_UPDATE, {"version": 2})
    assert caller.state().kv is (KV.DISCARDED if phase is Phase.COMMITTED else KV.RESIDENT)
    back(caller)
    vector = caller.state()
    assert (vector.phase, vector.weight_version) == (Phase.RUNNING, 2)
    assert not member.engine.paused


def test_loaded_weights_never_serve_uncommitted(running: Pair) -> None:
    member, caller = running
    to_updating(member, caller)
    for verb in (Verb.WAKE_KV, Verb.RESUME):
        with pytest.raises(RefusedError) as caught:
            caller.post(verb)
        assert (caught.value.status, caught.value.code) == (409, "WEIGHTS_NOT_COMMITTED")


def test_caches_of_other_weights_never_serve(running: Pair) -> None:
    from ebbtide_runtime.native import Field

    member, caller = running
    to_committed(member, caller)
    caller.do(Verb.WAKE_KV)
    member.page.set(Field.CACHE_EPOCH, 0)
    error = caller.fail(Verb.RESUME)
    assert (error.code, error.details["cacheEpoch"]) == ("WEIGHTS_NOT_COMMITTED", 0)
    assert not caller.state().admission


@pytest.mark.parametrize("lie", [Lie.ERROR, Lie.RESET, Lie.NOTHING, Lie.PARTIAL])
@pytest.mark.parametrize("verb", ["reload", "commit"])
def test_a_load_that_failed_poisons_the_engine(make: Make, verb: str, lie: Lie) -> None:
    """A mix of old and new weights is not led back: the engine is restarted, with the committed ones."""
    member = make(tensor_parallel=2)
    caller = member.start()
    to_running(caller)
    cycle(member, caller, 1)
    to_weights(caller)
    member.engine.lie(verb, lie)
    error = caller.fail(Verb.BEGIN_UPDATE, member.publish(2)) if verb == "reload" else None
    if error is None:
        caller.do(Verb.BEGIN_UPDATE, member.publish(2))
        error = caller.fail(Verb.COMMIT_UPDATE, {"version": 2})
    assert error.code == ("RANK_DISAGREEMENT" if lie is Lie.PARTIAL else "ENGINE_FAULTED")
    vector = to_running(caller)
    assert (vector.boot, vector.weight_version, vector.committed_version) == (2, 1, 1)


@pytest.mark.parametrize("verb", ["reload", "commit"])
def test_a_load_that_was_done_counts_whatever_the_connection_did(running: Pair, verb: str) -> None:
    member, caller = running
    to_weights(caller)
    member.engine.lie(verb, Lie.LATE)
    caller.do(Verb.BEGIN_UPDATE, member.publish(1))
    caller.do(Verb.COMMIT_UPDATE, {"version": 1})
    assert caller.state().boot == 1


def test_a_restarted_engine_gets_the_committed_weights_before_it_serves(running: Pair) -> None:
    member, caller = running
    cycle(member, caller, 3)
    member.engine.die()
    vector = to_running(caller)
    assert (vector.boot, vector.weight_version, vector.cache_epoch) == (2, 3, 3)
    assert Stream(member, 2).end() == "end length"


def test_without_its_copy_a_restarted_engine_waits_for_new_weights(running: Pair) -> None:
    member, caller = running
    cycle(member, caller, 3)
    for path in (Path(member.config.weights_dir) / "v3").iterdir():
        path.unlink()
    (Path(member.config.weights_dir) / "v3").rmdir()
    member.engine.die()
    caller.do(Verb.GRANT, {"boot": caller.until(Phase.PENDING_DEVICE).boot})
    vector = caller.until(Phase.VERIFYING)
    assert vector.last_error is not None
    assert vector.last_error.code == "WEIGHTS_NOT_COMMITTED"
    assert not vector.admission
    assert caller.fail(Verb.RESUME).code == "WEIGHTS_NOT_COMMITTED"
    assert caller.fail(Verb.RELOAD).code == "WEIGHTS_NOT_COMMITTED"
    caller.do(Verb.BEGIN_UPDATE, member.publish(4))
    caller.do(Verb.COMMIT_UPDATE, {"version": 4})
    back(caller)
    assert caller.state().weight_version == 4


def test_discarded_weights_whose_copy_is_gone_are_not_discarded(running: Pair) -> None:
    """Without a source, level 2 would lose them."""
    member, caller = running
    cycle(member, caller, 3)
    copy = Path(member.config.weights_dir) / "v3"
    copy.rename(copy.with_name("elsewhere"))
    assert caller.fail(Verb.SLEEP, {"level": 2}).code == "LEVEL_UNSUPPORTED"
    assert sleep(caller).result


# The canary


def test_a_canary_that_changed_keeps_the_gate_shut(running: Pair) -> None:
    member, caller = running
    sleep(caller)
    caller.do(Verb.WAKE_WEIGHTS)
    caller.do(Verb.WAKE_KV)
    right = member.engine.fleet.tokens("ebb and flow", 4)
    member.engine.canary = [1, 2, 3, 4]
    error = caller.fail(Verb.RESUME)
    assert error.code == "CANARY_FAILED"
    assert (error.details["tokens"], error.details["expected"]) == ([1, 2, 3, 4], right)
    vector = caller.until(Phase.VERIFYING)
    assert not vector.admission
    member.engine.canary = None
    caller.do(Verb.RESUME)


def test_the_same_weights_from_their_source_must_answer_as_before(running: Pair) -> None:
    """What level 2 loses and no checkpoint holds shows in the tokens alone."""
    member, caller = running
    right = member.engine.fleet.tokens("ebb and flow", 4)
    to_weights(caller, level=2)
    caller.do(Verb.RELOAD)
    caller.do(Verb.WAKE_KV)
    member.engine.canary = [0, 0, 0, 0]
    error = caller.fail(Verb.RESUME)
    assert (error.code, error.details["expected"]) == ("CANARY_FAILED", right)
    assert not caller.state().admission
    member.engine.canary = None
    caller.do(Verb.RESUME)


def test_a_canary_that_is_not_what_the_trainer_expects(running: Pair) -> None:
    member, caller = running
    to_committed(member, caller)
    caller.do(Verb.WAKE_KV)
    error = caller.fail(Verb.RESUME, {"canary": {"prompt": "p", "tokens": 2, "expect": [7, 7]}})
    assert (error.code, error.details["expected"]) == ("CANARY_FAILED", [7, 7])
    caller.do(Verb.BEGIN_UPDATE, member.publish(2))
    caller.do(Verb.COMMIT_UPDATE, {"version": 2})
    back(caller)
    assert caller.state().weight_version == 2


def test_new_weights_may_answer_otherwise(running: Pair) -> None:
    member, caller = running
    first = member.engine.fleet.tokens("ebb and flow", 4)
    cycle(member, caller, 1)
    assert member.engine.fleet.tokens("ebb and flow", 4) != first


@pytest.mark.parametrize("lie", [Lie.ERROR, Lie.RESET, Lie.HANG])
def test_a_canary_without_an_answer_keeps_the_gate_shut(make: Make, lie: Lie) -> None:
    member = make()
    caller = member.start(faster(canary_s=0.2))
    to_running(caller)
    caller.do(Verb.PAUSE)
    member.engine.lie("canary", lie)
    assert caller.fail(Verb.RESUME).code == "CANARY_FAILED"
    assert caller.until(Phase.VERIFYING).boot == 1
    caller.do(Verb.RESUME)
    assert caller.state().weights is Weights.RESIDENT
