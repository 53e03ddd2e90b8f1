"""What is generated is up to date, structural, described and bounded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from ebbtide_api import crdgen
from ebbtide_api.errors import ErrorCode
from ebbtide_api.schema import SchemaError, structural
from ebbtide_api.spec import VALIDATIONS
from pydantic import BaseModel, Field

ROOT = Path(__file__).resolve().parents[3]
Schema = dict[str, Any]


def crd(plural: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((ROOT / f"crds/{plural}.ebbtide.dev.yaml").read_text())
    return made


def root(plural: str) -> Schema:
    schema: Schema = crd(plural)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")


def ours(plural: str) -> list[tuple[str, Schema]]:
    return [(path, node) for path, node in nodes(root(plural)) if path.startswith((".spec", ".status"))]


def test_generated_files_are_up_to_date() -> None:
    assert crdgen.stale(ROOT) == [], "run: python -m ebbtide_api.crdgen"


def test_the_command_writes_what_is_stale_and_then_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(tmp_path)]
    assert crdgen.main(["--check", *root]) == 1
    assert not list(tmp_path.iterdir())
    assert crdgen.main(root) == 0
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.is_file()} == {
        "charts/ebbtide/files/crds/inferenceservers.ebbtide.dev.yaml",
        "charts/ebbtide/files/crds/kvcachepolicies.ebbtide.dev.yaml",
        "crds/inferenceservers.ebbtide.dev.yaml",
        "crds/kvcachepolicies.ebbtide.dev.yaml",
        "docs/errors.md",
        "docs/reference-inferenceservers.md",
        "docs/reference-kvcachepolicies.md",
    }
    capsys.readouterr()
    assert crdgen.main(root) == 0
    assert capsys.readouterr().out == ""
    (tmp_path / "docs/errors.md").write_text("old")
    assert crdgen.main(["--check", *root]) == 1
    assert capsys.readouterr().out == "stale: docs/errors.md\n"
    assert (tmp_path / "docs/errors.md").read_text() == "old"


@pytest.mark.parametrize("plural", ["inferenceservers", "kvcachepolicies"])
class TestSchema:
    def test_every_field_is_described(self, plural: str) -> None:
        bare = [path for path, node in ours(plural) if not path.endswith("[]") and not node.get("description")]
        assert bare == []

    def test_everything_is_bounded(self, plural: str) -> None:
        for path, node in ours(plural):
            match node.get("type"):
                case "string":
                    assert "maxLength" in node or "enum" in node, path
                case "integer":
                    assert {"minimum", "maximum"} <= set(node), path
                case "array":
                    assert "maxItems" in node, path
                case "number":
                    pytest.fail(f"{path}: a float")

    def test_every_list_says_how_it_merges(self, plural: str) -> None:
        for path, node in ours(plural):
            if node.get("type") == "array":
                assert node.get("x-kubernetes-list-type") in ("map", "atomic"), path
                for key in node.get("x-kubernetes-list-map-keys", []):
                    assert key in node["items"]["required"], path

    def test_only_the_template_keeps_unknown_fields(self, plural: str) -> None:
        open_ = [path for path, node in ours(plural) if "x-kubernetes-preserve-unknown-fields" in node]
        assert open_ == ([".spec.template"] if plural == "inferenceservers" else [])

    def test_nothing_is_left_that_is_not_structural(self, plural: str) -> None:
        foreign = {"title", "$ref", "$defs", "const", "oneOf", "allOf", "additionalProperties", "nullable"}
        for path, node in nodes(root(plural)):
            assert not foreign & set(node), path
            assert "type" in node or node.get("x-kubernetes-int-or-string"), path

    def test_rules_name_fields_that_exist(self, plural: str) -> None:
        rules = [(path, node, rule) for path, node in nodes(root(plural)) for rule in node.get(VALIDATIONS, [])]
        assert len(rules) >= 5
        for path, node, rule in rules:
            assert rule["message"], path
            inner = node
            for step in rule.get("fieldPath", "").split(".")[1:]:
                inner = inner["properties"][step]

    def test_it_has_a_status_subresource_and_our_category(self, plural: str) -> None:
        spec = crd(plural)["spec"]
        assert spec["versions"][0]["subresources"]["status"] == {}
        assert spec["names"]["categories"] == ["ebbtide"]
        assert spec["scope"] == "Namespaced"


def test_short_names_and_columns() -> None:
    servers, policies = crd("inferenceservers")["spec"], crd("kvcachepolicies")["spec"]
    assert (servers["names"]["shortNames"], policies["names"]["shortNames"]) == (["isv"], ["kvp"])

    def shown(spec: dict[str, Any]) -> list[str]:
        columns = spec["versions"][0]["additionalPrinterColumns"]
        return [column["name"] for column in columns if not column.get("priority")]

    assert shown(servers) == ["Model", "Ready", "State", "Awake", "Owner", "Version", "Age"]
    assert shown(policies) == ["DRAM", "Disk", "Pinned", "Hits", "Ready", "Age"]


def test_columns_and_scale_point_at_fields_that_exist() -> None:
    for plural in ("inferenceservers", "kvcachepolicies"):
        version = crd(plural)["spec"]["versions"][0]
        paths = {path for path, _ in nodes(root(plural))}
        scale = version["subresources"].get("scale", {}).values()
        for path in [*scale, *(column["jsonPath"] for column in version["additionalPrinterColumns"])]:
            if not path.startswith(".metadata"):
                assert path.split("[")[0] in paths, path


def test_scale_is_about_what_is_awake() -> None:
    assert crd("inferenceservers")["spec"]["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.awakeReplicas",
        "statusReplicasPath": ".status.awakeReplicas",
        "labelSelectorPath": ".status.selector",
    }


def test_no_allowed_value_is_a_boolean_in_yaml() -> None:
    for plural in ("inferenceservers", "kvcachepolicies"):
        for path, node in ours(plural):
            for value in node.get("enum", []):
                # kubectl would send `Off` as false, and the API server would refuse it.
                assert yaml.safe_load(value) == value or value in ("True", "False"), path


def test_the_page_of_errors_has_a_row_for_each_code() -> None:
    rows = [line for line in (ROOT / "docs/errors.md").read_text().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [str(code) for code in ErrorCode]
    assert all(row.count("|") == 6 for row in rows)


class Inner(BaseModel):
    """An inner one."""

    x: int = Field(3, description="X.", gt=0, lt=9)


class Outer(BaseModel):
    """An outer one."""

    kind: Literal["Outer"] = Field("Outer", description="The kind.")
    inner: Inner | None = Field(None, description="Perhaps one.")
    given: Inner = Field(Inner(), description="One.")
    names: dict[str, str] = Field(description="Names.")


def test_structural_rewrites() -> None:
    inner = {
        "type": "object",
        "properties": {
            "x": {
                "description": "X.",
                "type": "integer",
                "default": 3,
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 9,
                "exclusiveMaximum": True,
            }
        },
    }
    assert structural(Outer) == {
        "description": "An outer one.",
        "type": "object",
        "required": ["names"],
        "properties": {
            "kind": {"description": "The kind.", "type": "string", "default": "Outer", "enum": ["Outer"]},
            "inner": {"description": "Perhaps one.", **inner},
            "given": {"description": "One.", "default": {"x": 3}, **inner},
            "names": {"description": "Names.", "type": "object", "additionalProperties": {"type": "string"}},
        },
    }


class Undescribed(BaseModel):
    x: int


class Union(BaseModel):
    x: int | str = Field(description="Either.")


class Tuple(BaseModel):
    x: tuple[int, str] = Field(description="Both.")


class Multiple(BaseModel):
    x: Annotated[int, Field(multiple_of=3, description="Threes.")]


class Tree(BaseModel):
    child: "Tree | None" = Field(None, description="Another.")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Undescribed, "x: no description"),
        (Union, "x: a union of 2 types"),
        (Tuple, "x: no structural form for prefixItems"),
        (Multiple, "x: no structural form for multipleOf"),
        (Tree, "contains itself"),
    ],
)
def test_what_has_no_structural_form_is_an_error(model: type[BaseModel], why: str) -> None:
    with pytest.raises(SchemaError, match=why):
        structural(model)
