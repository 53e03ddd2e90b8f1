"""Wrong arguments, judged by vLLM's own parser: everything in one process, for its import takes ten seconds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.launching import Launch
from tests.support.members import member_config, write_member
from tests.support.models import tiny

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

JUDGE = """
import json, sys
from ebbtide_api.member import MemberConfig
from ebbtide_runtime.engine import compat
from ebbtide_runtime.engine.arguments import RefusedError, command_line
verdicts = []
for member in json.load(sys.stdin):
    try:
        command_line(compat.server_parser(), MemberConfig.model_validate(member))
        verdicts.append("")
    except RefusedError as refused:
        verdicts.append(str(refused))
json.dump(verdicts, sys.stderr)
"""

FINE: list[list[str]] = [
    [],
    ["--enforce-eager", "--max-model-len", "512"],
    ["--max_model_len=1k"],
    ["--port", "8000", "--middleware=ebbtide_runtime.engine.gate.Gate"][:2],
    ["--distributed-executor-backend", "mp"],
    ["--load_format=safetensors"],
    ["--additional-config.a", "1"],
    ["-O3"],
    ["--config", "CONFIG_FINE"],
]
WRONG: list[tuple[list[str], str]] = [
    (["--port", "9"], "--port to 9"),
    (["--por", "9"], "--port to 9"),
    (["--host=0.0.0.0"], "--host"),
    (["--middlew", "my.Own"], "--middleware"),
    (["--middleware=my.Own"], "--middleware"),
    (["--worker_cls=auto"], "--worker-cls"),
    (["--worker-extension-cls", "my.Own"], "--worker-extension-cls"),
    (["--load-format", "dummy"], "--load-format"),
    (["--load_form=dummy"], "--load-format"),
    (["--enable-sleep-mode"], "--enable-sleep-mode"),
    (["--enable_sleep_mode"], "--enable-sleep-mode"),
    (["--model", "other"], "--model"),
    (["--served-model-name", "x", "y"], "--served-model-name"),
    (["other-model"], "--model-tag"),
    (["--tensor-parallel-size", "2"], "--tensor-parallel-size"),
    (["-tp", "2"], "--tensor-parallel-size"),
    (["-pp=2"], "--pipeline-parallel-size"),
    (["--data-parallel-size", "2"], "--data-parallel-size"),
    (["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'], "--kv-transfer-config"),
    (["--kv-transfer-config.kv_connector", "NixlConnector"], "--kv-transfer-config"),
    (["--model-loader-extra-config.enable_multithread_load", "true"], "--model-loader-extra-config"),
    (["--api-key", "secret"], "--api-key"),
    (["--root-path", "/x"], "--root-path"),
    (["--uds", "/tmp/x"], "--uds"),
    (["--distributed-executor-backend", "ray"], "--distributed-executor-backend"),
    (["--config", "CONFIG_PORT"], "--port to 9"),
    (["--config", "CONFIG_MIDDLEWARE"], "--middleware"),
    (["--config", "/nowhere.yaml"], "engine.extraArgs: "),
    (["--nonsense"], "unrecognized arguments: --nonsense"),
    (["--max-model-len", "many"], "--max-model-len"),
    (["--help"], "may not ask vLLM for help"),
    (["--help=port"], "may not ask vLLM for help"),
]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Let the real parser judge every case, FINE first."""
    folder = tmp_path_factory.mktemp("arguments")
    for name, text in {
        "FINE": "max-model-len: 512\n",
        "PORT": "port: 9\n",
        "MIDDLEWARE": "middleware: [my.Own]\n",
    }.items():
        (folder / f"CONFIG_{name}.yaml").write_text(text)
    cases = [*FINE, *(extra for extra, _ in WRONG)]
    cases = [[f"{folder}/{arg}.yaml" if arg.startswith("CONFIG_") else arg for arg in case] for case in cases]
    members: list[dict[str, Any]] = [member_config(folder, extra_args=case).wire() for case in cases]
    done = subprocess.run(
        [sys.executable, "-c", JUDGE], input=json.dumps(members), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stderr.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("number", range(len(FINE)))
def test_what_does_not_contradict_passes(verdicts: list[str], number: int) -> None:
    assert verdicts[number] == ""


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_what_contradicts_is_refused_by_name(verdicts: list[str], number: int) -> None:
    assert WRONG[number][1] in verdicts[len(FINE) + number]


def test_a_wrong_argument_ends_the_launch_with_a_clear_last_line(tmp_path: Path) -> None:
    launch = Launch(write_member(tmp_path, model=str(tiny()), extra_args=["--middlew", "my.Own"]))
    try:
        launch.grant()
        assert launch.wait(120) == 64
        assert launch.last_line().startswith("ebbtide: engine.extraArgs may not set --middleware to ")
        assert launch.family() == 0
    finally:
        launch.close()


def test_an_engine_that_cannot_start_is_a_death(tmp_path: Path) -> None:
    launch = Launch(write_member(tmp_path, model=str(tmp_path / "no-such-model")))
    try:
        launch.grant()
        assert launch.wait(120) == 71
        assert launch.last_line() == "ebbtide: the engine died with status 1"
        assert launch.family() == 0
    finally:
        launch.close()
