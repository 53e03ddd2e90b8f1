"""What every case stands on: a cluster that KUBECONFIG names, the images' names, and a namespace of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator

import pytest

from . import trainer
from .images import Image, Images
from .kube import apply, exists, helm, kubectl, namespace
from .process import ROOT, timed
from .serving import HOME, Serving, server

CHART = str(ROOT / "charts" / "ebbtide")
CRDS = ("inferenceservers.ebbtide.dev", "kvcachepolicies.ebbtide.dev")
START_S = 300  # two engines start at once on two cores


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


@pytest.fixture(autouse=True)
def no_trainer_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """End what a case let borrow, also one that failed in the middle: the next one finds a server that serves."""
    yield
    if "serving" in request.fixturenames and exists("namespace", HOME):
        kubectl("delete", "jobs", "--all", "-n", HOME, "--cascade=foreground", "--timeout=60s")


@pytest.fixture(scope="module")
def space(request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace for the module's cases that enforces Pod Security `restricted`; it is gone after them."""
    name = "e2e-" + re.sub(r"[^a-z0-9]+", "-", request.module.__name__.rpartition(".")[2].removeprefix("test_"))
    apply(namespace(name))
    yield name
    kubectl("delete", "namespace", name, "--wait=true", "--timeout=90s")


@pytest.fixture(scope="session")
def install(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """Install the chart with the real operator, into a namespace that may be there."""
    repository, _, tag = images.ebbtide.name.rpartition(":")
    file = tmp_path_factory.mktemp("lend") / "values.json"
    file.write_text(json.dumps({"image": {"repository": repository, "tag": tag}}))

    def made() -> None:
        apply(namespace(HOME))
        helm("install", "ebbtide", CHART, "-n", HOME, "-f", str(file), "--wait", "--timeout", "120s")

    return made


@pytest.fixture(scope="session")
def serving(images: Images, install: Callable[[], None]) -> Iterator[Serving]:
    """The chart with the real operator, and a server of two replicas that serve. They take two minutes to start."""
    install()
    try:
        trainer.allow(HOME)
        made = Serving(HOME, server(HOME, images.engine.name))
        with timed("two engines serve"):
            made.wait("Serving", 2, START_S)
        yield made
    finally:
        helm("uninstall", "ebbtide", "-n", HOME, "--ignore-not-found", "--wait", "--timeout", "180s")
        kubectl("delete", "namespace", HOME, "--ignore-not-found", "--wait=true", "--timeout=90s")
        # Kept by the uninstall, and another release's until they are gone.
        kubectl("delete", "crd", *CRDS)
