"""One control plane for all tests of this folder. Opt-in: EBBTIDE_CLUSTER names a script that starts one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.cluster import SCRIPT, Kubectl, certificate, control_plane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="EBBTIDE_CLUSTER does not name a script that starts a control plane")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(300))
            if not SCRIPT:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    with control_plane(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(scope="session")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"))
