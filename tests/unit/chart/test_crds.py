"""The chart's copies of the CRDs are the generated ones, and nothing of them is lost on the way."""

import pytest
import yaml

from .rendering import CHART, ROOT, Object, objects, of_kind

GENERATED = {path.name: path for path in (ROOT / "crds").glob("*.yaml")}
COPIES = {path.name: path for path in (CHART / "files" / "crds").glob("*.yaml")}


def test_the_copies_are_the_generated_files() -> None:
    """Helm cannot read outside the chart's folder. `python -m ebbtide_api.crdgen` mends it."""
    assert {name: path.read_text() for name, path in COPIES.items()} == {
        name: path.read_text() for name, path in GENERATED.items()
    }


@pytest.mark.parametrize("name", GENERATED)
def test_rendering_changes_only_labels_and_annotations(name: str) -> None:
    source = yaml.safe_load(GENERATED[name].read_text())
    (rendered,) = [
        each for each in of_kind("CustomResourceDefinition", objects()) if f"{each['metadata']['name']}.yaml" == name
    ]
    assert rendered["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"].pop("labels")["app.kubernetes.io/instance"] == "ebbtide"
    assert rendered == source


@pytest.mark.parametrize(
    ("values", "installed", "kept"),
    [({}, True, True), ({"crds": {"keep": False}}, True, False), ({"crds": {"install": False}}, False, False)],
)
def test_installing_and_keeping_are_choices(values: Object, installed: bool, kept: bool) -> None:
    found = of_kind("CustomResourceDefinition", objects(values))
    assert bool(found) == installed
    assert any("helm.sh/resource-policy" in each["metadata"].get("annotations", {}) for each in found) == kept


def test_roles_of_people_come_with_them() -> None:
    names = {each["metadata"]["name"] for each in of_kind("ClusterRole", objects({"crds": {"install": False}}))}
    assert not names & {"ebbtide-view", "ebbtide-edit", "ebbtide-lend"}
