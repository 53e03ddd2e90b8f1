"""The table of what the engine answers: exact, total, and closed to every other spelling."""

from urllib.parse import quote

import pytest
from ebbtide_runtime.engine import paths
from ebbtide_runtime.engine.paths import Kind, classify
from hypothesis import given
from hypothesis import strategies as st
from starlette._utils import get_route_path

INFERENCE = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/pooling"]
OPEN = ["/health", "/metrics", "/version", "/v1/models", "/ping", "/load"]
# vLLM 0.32 registers these, some in dev mode only. Each can change the engine behind Ebbtide's back.
DANGEROUS = [
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/collective_rpc",
    "/pause",
    "/resume",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/release_kv_cache_memory",
    "/update_weights",
    "/start_weight_update",
    "/finish_weight_update",
    "/init_weight_transfer_engine",
    "/update_weight_version",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/inference/v1/abort_requests",
    "/abort_requests",
    "/invocations",
    "/server_info",
    "/start_profile",
    "/stop_profile",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/fault_tolerance/apply",
    "/weight_checker",
    "/tokenizer_info",
    "/docs",
    "/openapi.json",
]


@pytest.mark.parametrize("path", INFERENCE)
def test_inference_is_counted(path: str) -> None:
    assert classify("POST", path) is Kind.INFERENCE


@pytest.mark.parametrize("path", OPEN)
def test_what_needs_no_device_memory_is_open(path: str) -> None:
    assert classify("GET", path) is Kind.OPEN


@pytest.mark.parametrize("path", DANGEROUS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_dangerous_routes_are_denied(method: str, path: str) -> None:
    assert classify(method, path) is Kind.DENIED


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "post", ""])
def test_another_method_never_reaches_inference(method: str) -> None:
    assert classify(method, "/v1/completions") is Kind.METHOD


@pytest.mark.parametrize(
    "path",
    [
        "//v1/completions",
        "/v1//completions",
        "/v1/completions/",
        "/v1/completions/.",
        "/./v1/completions",
        "/v1/./completions",
        "/v1/x/../completions",
        "/V1/completions",
        "/v1/completions%2f",
        "/v1%2fcompletions",
        "/%76%31/completions",
        "/v1/completions;x=1",
        "/v1/completions?x",
        "/v1/completions\n",
        "/v1/completions\x00",
        "/v1/completions ",
        " /v1/completions",
        "v1/completions",
        "\\v1\\completions",
        "/v1/completions#",
        "/ｖ1/completions",
        "",
        "/",
        "*",
        "http://engine/v1/completions",
    ],
)
def test_no_other_spelling_is_the_same_path(path: str) -> None:
    assert classify("POST", path) is Kind.DENIED


@pytest.mark.parametrize("verb", ["pause", "resume", "sleep", "wake", "park", "reload", "commit"])
def test_control_verbs_are_control(verb: str) -> None:
    assert paths.rule(f"/ebbtide/v1/{verb}") == (Kind.CONTROL, "POST")


@pytest.mark.parametrize("path", ["/ebbtide", "/ebbtide/", "/ebbtide/v1", "/ebbtide/v1/engine/", "/ebbtide/../health"])
def test_everything_under_our_prefix_needs_the_secret(path: str) -> None:
    assert classify("GET", path) is Kind.CONTROL
    assert paths.rule(path)[1] == ""


def test_a_path_that_only_starts_like_ours_is_not_ours() -> None:
    assert classify("GET", "/ebbtidex/v1/engine") is Kind.DENIED


def test_stored_responses_are_read_and_cancelled_without_the_gate() -> None:
    assert classify("GET", "/v1/responses/resp_1a-B") is Kind.OPEN
    assert classify("POST", "/v1/responses/resp_1/cancel") is Kind.OPEN
    assert classify("GET", "/v1/responses/resp_1/cancel") is Kind.METHOD
    assert classify("GET", "/v1/responses/a/b") is Kind.DENIED
    assert classify("GET", "/v1/responses/" + "a" * 129) is Kind.DENIED
    assert classify("GET", "/v1/responses/x\n") is Kind.DENIED


@given(st.text(max_size=40), st.text(max_size=8))
def test_only_exact_paths_are_admitted(path: str, method: str) -> None:
    kind = classify(method, path)
    if kind is Kind.INFERENCE:
        assert path in paths._INFERENCE
        assert method == "POST"
    if path.startswith("/ebbtide/"):
        assert kind is Kind.CONTROL


@given(st.sampled_from(INFERENCE), st.integers(0, 30), st.sampled_from(["/", "%", ".", " ", "\t", "\x7f", ";", "é"]))
def test_a_mutated_path_is_never_admitted(path: str, at: int, inserted: str) -> None:
    mutated = path[: at % (len(path) + 1)] + inserted + path[at % (len(path) + 1) :]
    assert classify("POST", mutated) is Kind.DENIED
    assert classify("POST", quote(mutated, safe="")) is Kind.DENIED


@given(
    st.sampled_from(["", "/", "/a", "/v1", "/v1/completions"]), st.sampled_from(["", "/", "/x", "x", "/v1/completions"])
)
def test_the_path_is_the_routers(root: str, rest: str) -> None:
    scope = {"type": "http", "path": root + rest or "/", "root_path": root}
    assert paths.route_path(scope) == get_route_path(scope)
