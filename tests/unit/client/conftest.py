from collections.abc import Iterator
from pathlib import Path

import pytest
from ebbtide import Connection, Group

from tests.support.fake_gateway import TOKEN, FakeGateway, serving


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[FakeGateway]:
    (tmp_path / "handoff").mkdir()
    gateway = FakeGateway(tmp_path / "handoff")
    yield gateway
    gateway.close()


@pytest.fixture
def connection(gateway: FakeGateway) -> Iterator[Connection]:
    with serving(gateway) as url:
        yield Connection(url, TOKEN)


@pytest.fixture
def group(connection: Connection) -> Iterator[Group]:
    with Group("actor", connection=connection) as group:
        yield group
