"""The chart's copies of the CRDs are the generated ones, and nothing of them is lost on the way."""

import pytest
import yaml

from .rendering import CHART, NOTES, ROOT, Object, objects, of_kind, texts

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


def test_a_release_without_them_is_in_nobodys_way() -> None:
    """Helm refuses to write what another release made: beside it, everything cluster-scoped has another name."""

    def for_the_cluster(found: list[Object]) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in found if "namespace" not in each["metadata"]}

    first = for_the_cluster(objects())
    assert ("CustomResourceDefinition", "inferenceservers.ebbtide.dev") in first
    for name, namespace in (("other", "home"), ("ebbtide", "elsewhere")):
        beside = {"crds": {"install": False}}
        assert not for_the_cluster(objects(beside, name=name, namespace=namespace)) & first
        again = for_the_cluster(objects(name=name, namespace=namespace))
        shared = {kind for kind, _ in again & first}
        assert shared == {"CustomResourceDefinition", "ClusterRole"}, "what --take-ownership takes over"


@pytest.mark.parametrize(
    ("values", "says", "not_says"),
    [
        ({}, "--take-ownership", "uses the CRDs that are there"),
        ({"crds": {"keep": False}}, "helm test", "--take-ownership"),
        ({"crds": {"install": False}}, "uses the CRDs that are there", "--take-ownership"),
    ],
)
def test_the_notes_say_whose_they_are(values: Object, says: str, not_says: str) -> None:
    (notes,) = [text for path, text in texts(values).items() if path.endswith(NOTES)]
    assert says in notes
    assert not_says not in notes


def test_the_readme_says_what_to_do_when_they_are_there() -> None:
    """By the words of Helm's own refusal, which is what somebody looks for."""
    section = (CHART / "README.md").read_text().split("## CRDs that are there already")[1].split("\n## ")[0]
    for words in ("invalid ownership metadata", "--take-ownership", "crds.install=false"):
        assert words in section
    names = {each["metadata"]["name"] for each in of_kind("CustomResourceDefinition", objects())}
    assert all(name in section for name in names)
