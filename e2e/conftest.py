"""What every case stands on: a cluster that KUBECONFIG names, the images' names, and a namespace of its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from .images import Image, Images
from .kube import apply, kubectl, namespace


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the cases more time than unit tests have: pods start in them."""
    for item in items:
        item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def images() -> Images:
    """The images that the cluster has; scripts/e2e names them."""
    names = [os.environ.get(f"EBBTIDE_E2E_{each}", "") for each in ("BASE", "IMAGE", "ENGINE")]
    if not all(names) or "KUBECONFIG" not in os.environ:
        pytest.fail("run scripts/e2e, or set KUBECONFIG and EBBTIDE_E2E_BASE, EBBTIDE_E2E_IMAGE, EBBTIDE_E2E_ENGINE")
    return Images(*map(Image, names))


@pytest.fixture(scope="module")
def space(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for the module's cases that enforces Pod Security `restricted`; it is gone after them."""
    name = "e2e-" + re.sub(r"[^a-z0-9]+", "-", request.module.__name__.rpartition(".")[2].removeprefix("test_"))
    apply(namespace(name))
    yield name
    kubectl("delete", "namespace", name, "--wait=true", "--timeout=90s")
