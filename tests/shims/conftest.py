from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.shims.house import ShimHouse


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShimHouse]:
    made = ShimHouse(tmp_path_factory.mktemp("house"))
    try:
        made.open("--timeout", "20s", "--holder", "a framework")
        yield made
    finally:
        made.close()


@pytest.fixture
def house(running: ShimHouse) -> ShimHouse:
    running.rest()
    return running


@pytest.fixture
def client(house: ShimHouse) -> Iterator[httpx2.Client]:
    """A framework's HTTP client: it knows one address, and no token."""
    with httpx2.Client(base_url=house.url, trust_env=False, timeout=60) as client:
        yield client
