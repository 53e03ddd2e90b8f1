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
