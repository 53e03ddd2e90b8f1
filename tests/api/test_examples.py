"""The manifests that the README applies are taken by a real API server, under Pod Security `restricted` or not."""

from pathlib import Path

import pytest

from tests.api.cluster import NAMESPACE, ROOT, Kubectl

EXAMPLES = sorted((ROOT / "examples/cluster").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_taken_as_it_is(kubectl: Kubectl, path: Path) -> None:
    said = kubectl.ok("apply", "--dry-run=server", "-n", NAMESPACE, "-f", str(path))
    assert "created (server dry run)" in said
