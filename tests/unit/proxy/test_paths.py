"""The table of paths: nothing twice, nothing undocumented, and what goes where."""

from __future__ import annotations

from pathlib import Path

import pytest
from ebbtide.proxy import sglang, vllm
from ebbtide.proxy.asked import TAGS, Asked, mode_of, tags_of
from ebbtide.proxy.engines import is_for_engines
from ebbtide.proxy.refused import METHODS, REFUSED
from ebbtide.proxy.shims import SHIMS, shim_of, takes_body
from ebbtide_api.errors import EbbtideError, ErrorCode
from ebbtide_api.verbs import DrainMode

PAGE = (Path(__file__).resolve().parents[3] / "docs/proxy.md").read_text()


def test_every_path_is_in_the_page() -> None:
    paths = {path for _, path in SHIMS} | set(REFUSED)
    assert {
        path for path in paths if f"{path}`" not in PAGE and f"{path}?" not in PAGE and f"{path} " not in PAGE
    } == set()


def test_no_path_has_two_answers() -> None:
    assert set(vllm.SHIMS).isdisjoint(sglang.SHIMS)
    assert {path for _, path in SHIMS}.isdisjoint(REFUSED)


@pytest.mark.parametrize("table", [REFUSED, METHODS])
def test_refusals_read_well(table: dict[str, tuple[str, str]]) -> None:
    for what, action in table.values():
        assert not what.endswith(".")
        assert action.endswith((".", "disk."))
        assert action[0].isupper()


@pytest.mark.parametrize("path", REFUSED)
def test_what_cannot_be_is_refused_by_its_path_whatever_the_method(path: str) -> None:
    for method in ("GET", "POST", "PUT"):
        shim = shim_of(method, path)
        assert shim is not None
        with pytest.raises(EbbtideError) as caught:
            shim(None, Asked(path))  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.status) == (ErrorCode.NOT_IMPLEMENTED, 501)
        assert caught.value.message.startswith(f"{path}: ")
    assert not takes_body(path)


@pytest.mark.parametrize(
    "path",
    ["/v1/completions", "/v1/chat/completions", "/v1/models", "/inference/v1/generate", "/tokenize", "/v2/rerank"],
)
def test_an_engines_paths_go_to_an_engine(path: str) -> None:
    assert is_for_engines(path)
    assert shim_of("POST", path) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/groups",
        "/v1/groups/actor:lend",
        "/v1/servers/chat/state",
        "/v1/operations/x",
        "/v1/apply",
        "/v1/shutdown",
        "/namespaces/a/v1/groups",
        "/metrics",
        "/ebbtide/v1/engine",
    ],
)
def test_the_gateways_paths_go_to_the_gateway(path: str) -> None:
    assert not is_for_engines(path)


def test_tags() -> None:
    assert tags_of(None, vllm.TAGS) == tags_of([], vllm.TAGS) == TAGS
    assert tags_of(["weights,kv_cache"], vllm.TAGS) == TAGS
    assert tags_of("weights", sglang.TAGS) == {"weights"}
    assert tags_of(["kv_cache", "cuda_graph"], sglang.TAGS) == {"kv_cache"}
    assert tags_of(["cuda_graph"], sglang.TAGS) == frozenset()


@pytest.mark.parametrize("wrong", [["lora"], "lora", ["weights,"], ["cuda_graph"]])
def test_unknown_tags_are_refused_and_the_known_ones_named(wrong: object) -> None:
    with pytest.raises(EbbtideError) as caught:
        tags_of(wrong, vllm.TAGS)
    assert caught.value.code is ErrorCode.INVALID_TAG
    assert "kv_cache, weights" in caught.value.next_action


@pytest.mark.parametrize("wrong", [3, [1], {"weights": 1}])
def test_tags_that_are_no_texts_are_refused(wrong: object) -> None:
    with pytest.raises(EbbtideError) as caught:
        tags_of(wrong, vllm.TAGS)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_modes() -> None:
    assert mode_of("", ("abort",)) is None
    assert mode_of("keep", ("abort", "keep")) is DrainMode.KEEP
    with pytest.raises(EbbtideError) as caught:
        mode_of("keep", ("abort", "wait"))
    assert caught.value.details["modes"] == ["abort", "wait"]


def test_parameters_of_query_and_body() -> None:
    asked = Asked("/x", {"a": ["1", "2"], "yes": ["true"]}, {"text": "t", "number": 3, "no": False, "list": []})
    assert (asked.one("a"), asked.one("b")) == ("2", "")
    assert (asked.flag("yes", False), asked.flag("no", True), asked.flag("absent", True)) == (True, False, True)
    assert (asked.text("text"), asked.text("number"), asked.text("absent")) == ("t", "3", "")
    with pytest.raises(EbbtideError) as caught:
        asked.text("list")
    assert caught.value.details["field"] == "list"
