"""`pip install ebbtide` without extras: client and command line, and nothing that the extras bring."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKED = (
    "torch",
    "numpy",
    "vllm",
    "transformers",
    "fastapi",
    "starlette",
    "uvicorn",
    "psutil",
    "prometheus_client",
    "kopf",
)
BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*BLOCKED, "ebbtide_operator", "ebbtide_runtime")!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCK + code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "200", **environment}
    )


def test_the_client_imports_alone() -> None:
    done = python("import ebbtide; print(ebbtide.Group.__name__, ebbtide.AsyncGroup.__name__)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Group AsyncGroup\n", "")


def test_the_command_line_helps_alone() -> None:
    commands = ["", "up", "down", "status", "lend", "proxy", "logs", "doctor"]
    code = f"from ebbtide.cli.run import run\nfor name in {commands!r}: assert run([*name.split(), '--help']) == 0"
    done = python(code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage: ebbtide") == len(commands)


def test_doctor_says_what_is_missing(tmp_path: Path) -> None:
    done = python("from ebbtide.cli import main; main()", "doctor", "--home", str(tmp_path))
    assert done.returncode == 1
    assert "fastapi, uvicorn, psutil, prometheus_client cannot be imported" in done.stdout
    assert "checksums by python" in done.stdout


def test_up_says_what_to_install(tmp_path: Path) -> None:
    file, model = tmp_path / "server.yaml", tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    file.write_text(
        "apiVersion: ebbtide.dev/v1alpha1\nkind: InferenceServer\nmetadata: {name: chat}\n"
        "spec: {model: {source: ./model}}\n"
    )
    arguments = ("up", "-f", str(file), "--home", str(tmp_path / "home"))
    done = python("from ebbtide.cli import main; main()", *arguments)
    assert done.returncode == 2
    assert "pip install 'ebbtide[operator,runtime,cpu]'" in done.stderr


def test_weights_are_published_without_numpy_or_torch(tmp_path: Path) -> None:
    code = """
import sys, json, struct
from pathlib import Path
from ebbtide.weights import publish_path
from ebbtide.crc32c import backend
here = Path(sys.argv[1])
text = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
(here / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
print(publish_path(here / "model.safetensors", here / "handoff", 1).path.name, backend())
"""
    done = python(code, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "v1 python\n", "")


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not os.environ.get("EBBTIDE_SLOW_TESTS"), reason="makes a virtual environment: EBBTIDE_SLOW_TESTS=1"
)
def test_a_fresh_installation_has_only_what_it_says(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_folder, source = tmp_path / "venv/bin", tmp_path / "source"
    # A copy: pip builds inside the folder that it installs.
    for name in ("crds", "operator", "runtime"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run([bin_folder / "pip", "install", "-q", str(source)], check=True, timeout=240, capture_output=True)
    listed = subprocess.run([bin_folder / "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True)
    names = {line.partition("==")[0].lower() for line in listed.stdout.splitlines()}
    assert not names & {name.replace("_", "-") for name in BLOCKED}
    assert "ebbtide" in names
    done = subprocess.run([bin_folder / "ebbtide", "version"], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "ebbtide 0.1.0\n"
