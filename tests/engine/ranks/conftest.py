"""One engine of two ranks for the whole folder."""

from collections.abc import Iterator

import pytest

from tests.support.engines import RealEngine, real_engine
from tests.support.models import medium


@pytest.fixture(scope="package")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealEngine]:
    with real_engine(tmp_path_factory.mktemp("ranks"), medium(), tensor_parallel=2) as engine:
        yield engine
