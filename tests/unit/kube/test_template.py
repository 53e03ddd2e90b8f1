"""A user's patch of the pod template: what it may change, what it may not, and what is refused by name."""

from typing import Any

import pytest
from ebbtide_operator.kube.children import children, first_problem
from ebbtide_operator.kube.children.merge import merge
from hypothesis import given
from hypothesis import strategies as st

from .given import SITE, at, server


def pod(template: Any, **spec: Any) -> Any:
    return at(children(server(template=template, **spec), SITE)[-1], "spec.template.spec")


def test_users_choose_resources_nodes_and_volumes() -> None:
    spec = pod(
        {
            "spec": {
                "nodeSelector": {"gpu": "yes"},
                "terminationGracePeriodSeconds": 7,
                "containers": [
                    {
                        "name": "engine",
                        "resources": {"limits": {"memory": "9Gi"}},
                        "env": [{"name": "HF_TOKEN", "value": "x"}],
                        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                    },
                    {"name": "exporter", "image": "exporter"},
                ],
                "initContainers": [{"name": "fetch", "image": "fetch"}],
                "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
            }
        }
    )
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert spec["terminationGracePeriodSeconds"] == 7
    engine = at(spec, "containers.engine")
    assert engine["resources"] == {"requests": {"memory": "2064Mi"}, "limits": {"memory": "9Gi"}}
    assert at(engine, "env.HF_TOKEN")["value"] == "x"
    assert {"/models", "/run/ebbtide"} <= {mount["mountPath"] for mount in engine["volumeMounts"]}
    assert [each["name"] for each in spec["containers"]] == ["engine", "exporter"]
    assert [each["name"] for each in spec["initContainers"]] == ["payload", "agent", "fetch"]
    assert at(spec, "volumes.models.persistentVolumeClaim.claimName") == "models"


@pytest.mark.parametrize(
    ("change", "path", "stays"),
    [
        ({"serviceAccountName": "admin"}, "serviceAccountName", "ebbtide-engine"),
        ({"automountServiceAccountToken": True}, "automountServiceAccountToken", False),
        ({"restartPolicy": "Never"}, "restartPolicy", "Always"),
        (
            {"containers": [{"name": "engine", "image": "other"}]},
            "containers.engine.image",
            "registry.example/vllm:0.32",
        ),
        (
            {"containers": [{"name": "engine", "env": [{"name": "PYTHONPATH", "value": "/x"}]}]},
            "containers.engine.env.PYTHONPATH.value",
            "/opt/ebbtide/payload",
        ),
        (
            {"volumes": [{"name": "ebbtide-token", "projected": None}]},
            "volumes.ebbtide-token.projected.defaultMode",
            0o440,
        ),
        (
            {"initContainers": [{"name": "agent", "restartPolicy": None}]},
            "initContainers.agent.restartPolicy",
            "Always",
        ),
    ],
)
def test_what_ebbtide_needs_stays(change: Any, path: str, stays: object) -> None:
    assert at(pod({"spec": change}), path) == stays


def test_the_engine_is_started_by_our_launcher_whatever_the_template_says() -> None:
    spec = pod({"spec": {"containers": [{"name": "engine", "command": ["sh"]}]}})
    assert at(spec, "containers.engine.command")[:3] == ["python3", "-m", "ebbtide_runtime.launch"]


def test_labels_that_select_stay_and_others_are_added() -> None:
    changed = {"metadata": {"labels": {"ebbtide.dev/server": "other", "team": "a"}, "annotations": {"x": "y"}}}
    template = at(children(server(template=changed), SITE)[-1], "spec.template")
    assert template["metadata"]["labels"]["ebbtide.dev/server"] == "tiny"
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"]["x"] == "y"


def test_a_handoff_volume_reaches_agent_and_engine() -> None:
    spec = pod({"spec": {"volumes": [{"name": "ebbtide-handoff", "persistentVolumeClaim": {"claimName": "weights"}}]}})
    for path in ("initContainers.agent", "containers.engine"):
        assert "/var/lib/ebbtide-handoff" in {mount["mountPath"] for mount in at(spec, path)["volumeMounts"]}


# merge

VALUES = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c", "name"]), VALUES, max_size=4)


@given(OBJECTS, OBJECTS)
def test_a_patch_that_is_applied_twice_changes_nothing_more(base: Any, patch: Any) -> None:
    once = merge(base, patch)
    assert merge(once, patch) == once


@given(OBJECTS)
def test_an_empty_patch_changes_nothing(base: Any) -> None:
    assert merge(base, {}) == base


@given(OBJECTS, OBJECTS)
def test_a_merge_changes_neither_side(base: Any, patch: Any) -> None:
    before = repr((base, patch))
    merge(base, patch)
    assert repr((base, patch)) == before


def test_a_null_removes_and_lists_without_names_are_replaced() -> None:
    assert merge({"a": 1, "b": {"c": 2, "d": 3}, "l": [1]}, {"a": None, "b": {"c": None}, "l": [2, 3]}) == {
        "b": {"d": 3},
        "l": [2, 3],
    }


# problems


def test_a_whole_server_has_no_problem() -> None:
    assert first_problem(server()) is None


@pytest.mark.parametrize(
    ("spec", "reason", "says"),
    [
        ({"engine": {}}, "ImageMissing", "spec.engine.image"),
        ({"colocation": {}}, "DevicesMissing", "devices.cpu.memory"),
        ({"engine": {"image": "i", "port": 7412}}, "PortTaken", "7412"),
        ({"weights": {"handoff": "SharedMemory"}}, "HandoffVolumeMissing", "ebbtide-handoff"),
        ({"weights": {"handoff": "Disk"}}, "HandoffVolumeMissing", "Disk"),
        ({"template": {"spec": []}}, "TemplateInvalid", "objects"),
        ({"template": {"spec": {"containers": {"name": "engine"}}}}, "TemplateInvalid", "spec.containers"),
        ({"template": {"spec": {"volumes": [{"emptyDir": {}}]}}}, "TemplateInvalid", "spec.volumes"),
        (
            {"template": {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "512Mi"}}}]}}},
            "MemoryLimitTooSmall",
            "hostMemoryLimit (1040 MiB)",
        ),
    ],
)
def test_a_problem_is_named_with_the_next_step(spec: Any, reason: str, says: str) -> None:
    problem = first_problem(server(**spec))
    assert problem is not None
    assert problem.reason == reason
    assert says in problem.message
    assert problem.message.endswith(".") or reason == "TemplateInvalid"


def handed(kind: str, **spec: Any) -> Any:
    """A template whose hand-off volume is of a kind."""
    return {"spec": {"volumes": [{"name": "ebbtide-handoff", kind: {}}], **spec}}


APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}],
    }
}
ZONES = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "topology.kubernetes.io/zone"}, "odd"],
    }
}


@pytest.mark.parametrize(
    ("handoff", "replicas", "template", "says"),
    [
        ("SharedMemory", 1, handed("emptyDir"), "every pod has for itself"),
        ("Disk", 1, handed("emptyDir"), "emptyDir"),
        ("SharedMemory", 1, handed("ephemeral"), "ephemeral"),
        ("SharedMemory", 2, handed("hostPath", affinity=APART), "podAntiAffinity keeps the 2 engines"),
        ("SharedMemory", 1, handed("hostPath", affinity=APART), ""),
        ("SharedMemory", 2, handed("hostPath", affinity=ZONES), ""),
        ("SharedMemory", 2, handed("hostPath", affinity={"podAntiAffinity": 5}), ""),
        ("SharedMemory", 2, handed("persistentVolumeClaim", affinity=APART), ""),
        ("Disk", 2, handed("hostPath", affinity=APART), ""),
        ("Stream", 2, handed("emptyDir"), ""),
    ],
)
def test_shared_memory_is_refused_where_trainer_and_engines_cannot_meet(
    handoff: str, replicas: int, template: Any, says: str
) -> None:
    problem = first_problem(server(weights={"handoff": handoff}, replicas=replicas, template=template))
    assert (problem is not None) == bool(says), problem
    if problem is not None:
        assert (problem.reason, says in problem.message) == ("HandoffOutOfReach", True)
        assert problem.message.endswith("or handoff Stream.")


def test_a_template_of_any_shape_never_breaks_the_builder() -> None:
    for broken in ({"spec": 1}, {"spec": {"containers": 5}}, {"metadata": "x"}, {"spec": {"volumes": [1]}}):
        assert children(server(template=broken), SITE)
