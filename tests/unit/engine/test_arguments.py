"""The engine's command line, with a small parser of vLLM's kind. The real one is in tests/engine."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from ebbtide_api.member import Engine
from ebbtide_runtime.engine import arguments
from ebbtide_runtime.engine.arguments import RefusedError, command_line, ours

from tests.support.members import member_config


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("model_tag", nargs="?")
    for name in (
        "model",
        "served-model-name",
        "host",
        "revision",
        "quantization",
        "worker-cls",
        "worker-extension-cls",
    ):
        made.add_argument(f"--{name}")
    for name in ("port", "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "max-model-len"):
        made.add_argument(f"--{name}", type=int, default=1)
    made.add_argument("--load-format", default="auto")
    made.add_argument("--middleware", action="append", default=[])
    made.add_argument("--enable-sleep-mode", action=argparse.BooleanOptionalAction, default=False)
    made.add_argument("--kv-transfer-config")
    made.add_argument("--kv-offloading-size", type=float)
    made.add_argument("--api-server-count", type=int)
    made.add_argument("--distributed-executor-backend")
    made.add_argument("--enforce-eager", action="store_true")
    made.add_argument("--api-key", nargs="*")
    return made


def test_what_ebbtide_sets(tmp_path: Path) -> None:
    member = member_config(tmp_path, tensor_parallel=2, data_port=8123)
    parsed = parser().parse_args(ours(member))
    assert parsed.model == member.model
    assert (parsed.port, parsed.host, parsed.tensor_parallel_size) == (8123, "127.0.0.1", 2)
    assert (parsed.served_model_name, parsed.load_format) == ("tiny", "safetensors")
    assert parsed.worker_cls == "ebbtide_runtime.engine.worker.EbbtideCPUWorker"
    assert parsed.middleware == ["ebbtide_runtime.engine.gate.Gate"]
    assert parsed.enable_sleep_mode is False


def test_cuda_sleeps_by_vllms_own_backend(tmp_path: Path) -> None:
    parsed = parser().parse_args(ours(member_config(tmp_path, engine=Engine.CUDA)))
    assert parsed.enable_sleep_mode is True
    assert parsed.worker_cls == "ebbtide_runtime.engine.cuda_worker.EbbtideCUDAWorker"


def test_what_is_not_set_is_not_passed(tmp_path: Path) -> None:
    assert "--quantization" not in ours(member_config(tmp_path))
    assert "--revision" in ours(member_config(tmp_path, revision="main"))


def test_other_arguments_pass(tmp_path: Path) -> None:
    extra = ["--max-model-len", "512", "--enforce-eager", "--distributed-executor-backend", "mp"]
    line = command_line(parser(), member_config(tmp_path, extra_args=extra))
    assert line[-len(extra) :] == extra


def test_the_same_value_again_is_no_contradiction(tmp_path: Path) -> None:
    member = member_config(tmp_path, extra_args=["--port", "8000", "--load-format=safetensors"])
    assert command_line(parser(), member)[-1] == "--load-format=safetensors"


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        (["--port", "9"], "--port to 9 (Ebbtide sets 8000)"),
        (["--por=9"], "--port to 9"),
        (["--host", "0.0.0.0"], "--host to '0.0.0.0'"),
        (["--middlew", "my.Own"], "--middleware to"),
        (["--worker-cls", "auto"], "--worker-cls to 'auto'"),
        (["--worker-e", "my.Own"], "--worker-extension-cls"),
        (["--load-format", "dummy"], "weights are read from safetensors alone"),
        (["--enable-sleep-mode"], "Ebbtide decides how the engine sleeps"),
        (["--model", "other"], "--model to 'other'"),
        (["other"], "--model-tag to 'other'"),
        (["--served-model-name", "x"], "--served-model-name"),
        (["--tensor-parallel-size", "2"], "--tensor-parallel-size to 2"),
        (["--data-parallel-size", "2"], "one engine a replica"),
        (["--kv-transfer-config", "{}"], "the KV connector is Ebbtide's"),
        (["--kv-offloading-size", "8"], "the KV connector is Ebbtide's"),
        (["--api-server-count", "2"], "one API process a replica"),
        (["--distributed-executor-backend", "ray"], "--distributed-executor-backend to 'ray'"),
        (["--api-key", "k"], "API keys are not supported yet"),
    ],
)
def test_contradictions_are_named(tmp_path: Path, extra: list[str], named: str) -> None:
    with pytest.raises(RefusedError) as caught:
        command_line(parser(), member_config(tmp_path, extra_args=extra))
    assert str(caught.value).startswith("engine.extraArgs may not set ")
    assert named in str(caught.value)


def test_all_contradictions_are_named_at_once(tmp_path: Path) -> None:
    extra = ["--port", "9", "--host", "h"]
    with pytest.raises(RefusedError, match=r"--host to 'h'.*; --port to 9"):
        command_line(parser(), member_config(tmp_path, extra_args=extra))


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        (["--nonsense"], "unrecognized arguments: --nonsense"),
        (["--port"], "expected one argument"),
        (["--max-model-len", "many"], "invalid int value"),
        (["--help"], "may not ask vLLM for help"),
    ],
)
def test_what_vllm_does_not_accept_is_said(
    tmp_path: Path, extra: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RefusedError, match=why):
        command_line(parser(), member_config(tmp_path, extra_args=extra))


def test_every_locked_argument_says_why() -> None:
    assert all(reason and not reason.endswith(".") for reason in arguments.LOCKED.values())
