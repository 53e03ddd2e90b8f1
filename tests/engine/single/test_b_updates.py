"""New weights in place, on the real engine."""

import pytest
from ebbtide_api.state import Weights

from tests.support.engines import RealEngine
from tests.support.models import medium

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


def code(answer: object) -> object:
    return answer.json()["code"]  # type: ignore[attr-defined]


def test_other_weights_give_other_tokens_and_the_old_ones_the_old(engine: RealEngine) -> None:
    before = engine.tokens()
    engine.control("pause", mode="wait", clearCache=True)
    version = engine.load(medium(seed=1))
    engine.control("resume")
    assert engine.state().weight_version == version
    other = engine.tokens()
    assert other != before
    engine.control("pause", mode="wait", clearCache=True)
    engine.load(medium())
    engine.control("resume")
    assert engine.tokens() == before


def test_the_whole_way_of_a_training_step(engine: RealEngine) -> None:
    before = engine.tokens()
    engine.sleep(1)
    engine.control("wake", tag="weights")
    engine.load(medium(seed=1))
    engine.control("wake", tag="kv_cache")
    engine.control("resume")
    trained = engine.tokens()
    engine.sleep(1)
    engine.wake()
    assert engine.tokens() == trained != before
    engine.load(medium())
    assert engine.tokens() == before


def test_loaded_weights_serve_only_once_committed(engine: RealEngine) -> None:
    engine.control("pause", mode="wait", clearCache=True)
    state = engine.control("reload", path=str(medium()), version=77)
    assert (state.ranks[0].pending_version, state.weight_version) != (None, 77)
    refused = engine.post("resume")
    assert (refused.status_code, code(refused)) == (409, "WEIGHTS_NOT_COMMITTED")
    refused = engine.post("commit", version=78)
    assert (refused.status_code, code(refused)) == (409, "WEIGHTS_NOT_COMMITTED")
    assert engine.control("commit", version=77).weight_version == 77
    engine.control("resume")


def test_discarded_weights_do_not_serve(engine: RealEngine) -> None:
    engine.sleep(2)
    assert code(engine.post("resume")) == "WEIGHTS_NOT_COMMITTED"
    engine.control("wake", tag="weights")
    assert code(engine.post("resume")) == "WEIGHTS_NOT_COMMITTED"
    engine.load(medium())
    assert code(engine.post("resume")) == "ILLEGAL_TRANSITION"
    engine.control("wake", tag="kv_cache")
    engine.control("resume")


def test_weights_without_memory_are_not_loaded(engine: RealEngine) -> None:
    engine.sleep(2)
    refused = engine.post("reload", path=str(medium()), version=90)
    assert (refused.status_code, code(refused)) == (500, "ENGINE_FAULTED")
    assert engine.state().ranks[0].weights is Weights.DISCARDED
    engine.control("wake", tag="weights")
    engine.load(medium())
    engine.control("wake", tag="kv_cache")
    engine.control("resume")


def test_a_folder_without_weights_harms_nothing(engine: RealEngine, tmp_path: object) -> None:
    before = engine.tokens()
    assert engine.post("reload", path=str(tmp_path), version=91).status_code == 500
    assert engine.state().ranks[0].weights is Weights.RESIDENT
    assert engine.tokens() == before


@pytest.mark.parametrize(
    ("verb", "body", "status", "expected"),
    [
        ("wake", {"tag": "scheduling"}, 400, "INVALID_TAG"),
        ("pause", {"mode": "Abort"}, 400, "INVALID_MODE"),
        ("sleep", {"level": 3}, 422, "LEVEL_UNSUPPORTED"),
        ("sleep", {}, 400, "INVALID_REQUEST"),
        ("nonsense", {}, 404, "NOT_FOUND"),
    ],
)
def test_wrong_calls_are_named(
    engine: RealEngine, verb: str, body: dict[str, object], status: int, expected: str
) -> None:
    answer = engine.post(verb, **body)
    assert (answer.status_code, code(answer)) == (status, expected)
