"""One engine for the whole folder: a start takes half a minute."""

from collections.abc import Iterator

import pytest

from tests.support.engines import RealEngine, real_engine
from tests.support.models import medium


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with real_engine(tmp_path_factory.mktemp("single"), medium()) as engine:
        yield engine


@pytest.fixture
def engine(started: RealEngine) -> Iterator[RealEngine]:
    """The engine, awake, with the gate shut before and after the test."""
    yield started
    started.page.close_gate()
