import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide_runtime.native import Arena, Page


@pytest.fixture
def shm() -> Iterator[Path]:
    """A memory-backed folder of this test's own, as in production."""
    with tempfile.TemporaryDirectory(prefix="ebbtide-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def page(shm: Path) -> Iterator[Page]:
    made = Page.create(shm / "page")
    yield made
    made.close()


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(8 << 30)
    yield made
    made.close()


@pytest.fixture
def small_disk(shm: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = shm / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    yield folder
    subprocess.run(["umount", folder], check=True)
