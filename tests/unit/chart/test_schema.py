"""values.schema.json refuses what the chart would misread, and README says what there is."""

import json
from typing import Any

import helm_python
import pytest
import yaml

from .rendering import CHART, SHAPES, Object, objects

WRONG: list[Object] = [
    {"imgae": {}},
    {"image": {"tga": "1"}},
    {"image": {"tag": 1}},
    {"image": {"pullPolicy": "Sometimes"}},
    {"clusterWide": "yes"},
    {"watchNamespaces": "a"},
    {"watchNamespaces": ["A_b"]},
    {"watchNamespaces": ["a", "a"]},
    {"replicas": -1},
    {"replicas": 1.5},
    {"gateway": {"service": {"port": 0}}},
    {"gateway": {"service": {"type": "ExternalName"}}},
    {"gateway": {"tls": {"validityDays": 0}}},
    {"gateway": {"tls": {"caBundle": "/etc/ca.crt"}}},
    {"runAsUser": 0},
    {"command": "python"},
    {"extraEnv": [{"value": "a"}]},
    {"podLabels": {"a": 1}},
    {"networkPolicies": {"apiServerPorts": []}},
    {"networkPolicies": {"gatewayFrom": [{}]}},
    {"monitoring": {"podMonitor": {"interval": "often"}}},
    {"uninstall": {"timeoutSeconds": 0}},
]


@pytest.mark.parametrize("values", WRONG, ids=json.dumps)
def test_wrong_values_are_refused(values: Object) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=r"at '/|additional properties"):
        objects(values)


@pytest.mark.parametrize("values", [*SHAPES.values(), {"global": {"a": 1}}, {"runAsUser": None}], ids=json.dumps)
def test_right_values_pass(values: Object) -> None:
    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)


def leaves(prefix: str, value: Any) -> dict[str, Any]:
    """Return the settings by their dotted names; `resources` and empty maps are one setting."""
    if not isinstance(value, dict) or not value or prefix == "resources":
        return {prefix: value}
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= leaves(f"{prefix}.{name}" if prefix else name, inner)
    return found


def test_the_schema_knows_every_value_and_no_other() -> None:
    def names(schema: Any, prefix: str = "") -> set[str]:
        known = schema.get("properties", {})
        if not known or prefix == "resources":
            return {prefix}
        return {name for key, inner in known.items() for name in names(inner, f"{prefix}.{key}" if prefix else key)}

    schema = json.loads((CHART / "values.schema.json").read_text())
    assert names(schema) - {"global"} == set(leaves("", yaml.safe_load((CHART / "values.yaml").read_text())))


def test_the_readme_lists_every_value_with_its_default() -> None:
    defaults = leaves("", yaml.safe_load((CHART / "values.yaml").read_text()))
    rows = [line.split(" | ") for line in (CHART / "README.md").read_text().splitlines() if line.startswith("| `")]
    written = {row[0].removeprefix("| ").strip("`"): json.loads(row[1].strip("`")) for row in rows}
    assert written == defaults
