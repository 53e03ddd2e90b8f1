from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ebbtide import Connection
from ebbtide.client.borrowing import Terms
from ebbtide.proxy.holder import Holder
from ebbtide.proxy.server import Proxy

from tests.support.fake_gateway import TOKEN, FakeGateway
from tests.support.gateway_http import serving

Make = Callable[..., Proxy]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    (tmp_path / "handoff").mkdir()
    made = FakeGateway(tmp_path / "handoff")
    yield made
    made.close()


@pytest.fixture
def url(gateway: FakeGateway) -> Iterator[str]:
    with serving(gateway) as url:
        yield url


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Make proxies of the fake gateway, or of another one."""
    made: list[Proxy] = []

    def new(to: str = url, **terms: Any) -> Proxy:
        connection = Connection(to, TOKEN)
        made.append(Proxy(connection, Holder(connection, Terms("actor", **terms)), 0))
        return made[-1]

    yield new
    for proxy in made:
        proxy.close()


@pytest.fixture
def proxy(make: Make) -> Proxy:
    return make()


@pytest.fixture
def client(proxy: Proxy) -> Iterator[httpx2.Client]:
    """A client that knows nothing but the address."""
    with httpx2.Client(base_url=proxy.url, trust_env=False, timeout=20) as client:
        yield client
