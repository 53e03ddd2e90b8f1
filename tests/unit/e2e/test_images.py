"""Images are kept by the digest of what goes in, and the engine's has the engine alone."""

import subprocess
import sys
import tarfile
from email.message import Message
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from e2e import images
from e2e.closure import needed, normal


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(images, "CACHE", tmp_path)
    return tmp_path


def test_what_is_made_once_is_kept(store: Path) -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("x")

    first, second = images.kept("thing", "1", make), images.kept("thing", "1", make)
    assert first == second == store / "thing-1.tar"
    assert len(made) == 1


def test_a_new_key_takes_the_place_of_the_old_one(store: Path) -> None:
    (store / "other-1.tar").write_text("")
    for key in ("1", "2"):
        images.kept("thing", key, lambda target: target.write_text("x"))
    assert {path.name for path in store.iterdir()} == {"thing-2.tar", "other-1.tar"}


def test_half_made_is_not_kept(store: Path) -> None:
    def fail(target: Path) -> None:
        target.write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        images.kept("thing", "1", fail)
    assert not (store / "thing-1.tar").exists()
    assert images.kept("thing", "1", lambda target: target.write_text("whole")).read_text() == "whole"


def test_digests_depend_on_text_content_and_order(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("a")
    assert images.digest("a") == images.digest(file)
    assert len({images.digest("a", "b"), images.digest("b", "a"), images.digest("ab"), images.digest("a")}) == 4


def test_a_tar_of_the_same_files_is_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    for name in ("sub/b", "a"):
        (source / name).write_text(name)
    images.tar(source, tmp_path / "1.tar", names=["a", "sub/b"])
    images.tar(source, tmp_path / "2.tar", names=["sub/b", "a"])
    with tarfile.open(tmp_path / "1.tar") as one:
        assert sorted(one.getnames()) == ["a", "sub/b"]
        assert {member.uid for member in one} == {0}
    images.tar(source, tmp_path / "all.tar")
    with tarfile.open(tmp_path / "all.tar") as whole:
        assert sorted(whole.getnames()) == [".", "./a", "./sub", "./sub/b"]


@pytest.mark.parametrize(
    ("path", "used"),
    [
        ("triton/_C/libtriton.so", False),
        ("triton-3.9.0.dist-info/METADATA", False),
        ("vllm/triton_utils/__init__.py", True),
        ("torch/bin/torch_shm_manager", True),
        ("torch/bin/protoc", False),
        ("torch/test/test_api", False),
        ("torch/testing/__init__.py", True),
        ("torch/lib/libtorch_cpu.so", True),
        ("torch/lib/libfmt.a", False),
    ],
)
def test_only_what_a_cpu_never_opens_is_left_out(path: str, used: bool) -> None:
    assert (images.UNUSED.search(path) is None) == used


class Fake(Distribution):
    """A distribution that needs `wanted`."""

    def __init__(self, *wanted: str) -> None:
        self._wanted = wanted

    @property
    def requires(self) -> list[str]:
        return list(self._wanted)

    @property
    def metadata(self) -> Message:
        return Message()

    def read_text(self, filename: str) -> None:
        return None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


def test_a_closure_follows_extras_and_markers() -> None:
    installed: dict[str, Distribution] = {
        "engine": Fake(
            "Web_Server[fast]>=1", "absent", "windows-only; sys_platform == 'win32'", "docs; extra == 'docs'"
        ),
        "web-server": Fake("speed; extra == 'fast'", "slow; extra == 'slow'", "engine"),
        "speed": Fake(),
        "slow": Fake(),
        "docs": Fake(),
        "windows-only": Fake(),
        "ebbtide": Fake("engine"),
    }
    assert needed(installed, "engine") == {"engine", "web-server", "speed"}
    assert normal("Web_.Server") == "web-server"


def test_the_closure_lists_files_beside_each_other() -> None:
    """Of something small that is always there; the engine's own would take seconds."""
    script = Path(images.__file__).with_name("closure.py")
    done = subprocess.run([sys.executable, script, "pytest"], capture_output=True, text=True, check=True)
    files = done.stdout.split()
    assert any(name.startswith("pluggy/") for name in files)
    assert not any(name.startswith(("..", "hypothesis/")) for name in files)


def test_the_dockerfile_is_keyed_by_what_it_sees() -> None:
    names = {str(path.relative_to(images.ROOT)) for path in images.sources()}
    assert {"Dockerfile", "pyproject.toml", "csrc/include/ebbtide.h", "crds/ebbtide_api/base.py"} <= names
    assert not any(name.endswith((".so", ".pyc")) for name in names)
    assert images.source_key() == images.source_key()


def test_pip_fetches_all_that_the_dockerfile_installs() -> None:
    wanted = images.requirements()
    for name in ("ziglang==", "cyclonedx-bom==", "setuptools>", "kopf>", "kubernetes>", "fastapi>", "pydantic>"):
        assert any(each.startswith(name) for each in wanted), name
