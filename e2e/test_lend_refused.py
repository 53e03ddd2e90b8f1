"""What cannot run, on a cluster: each ends in a condition with a reason and a next step, and in one Event."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .images import Images
from .kube import Object, apply, get, kubectl, until
from .process import CommandError
from .serving import HOME, Serving, server


def named(name: str, image: str, **spec: Any) -> Object:
    """Return a server of a group of its own."""
    made = server(HOME, image, replicas=1, **spec)
    made["metadata"]["name"] = name
    made["spec"]["colocation"]["group"] = name
    return made


def stalled(name: str) -> str:
    """Return why a server stalls, as `reason: message`; nothing while it does not."""
    conditions = get("isv", name, "-n", HOME).get("status", {}).get("conditions", [])
    found = [one for one in conditions if (one["type"], one["status"]) == ("Stalled", "True")]
    return f"{found[0]['reason']}: {found[0]['message']}" if found else ""


def events(name: str, reason: str) -> list[Object]:
    picked = f"involvedObject.name={name},involvedObject.kind=InferenceServer,reason={reason}"
    found: list[Object] = get("events", "-n", HOME, "--field-selector", picked)["items"]
    return found


@pytest.mark.parametrize(
    ("what", "change", "says"),
    [
        ("no-node", {"template": {"spec": {"nodeSelector": {"gpu": "absent"}}}}, "no node takes it"),
        ("no-policy", {"cachePolicy": {"name": "absent"}}, "NotYetSupported: "),
        (
            "no-room",
            {"template": {"spec": {"containers": [{"name": "engine", "resources": {"limits": {"memory": "64Mi"}}}]}}},
            "MemoryLimitTooSmall: ",
        ),
        ("no-model", {"model": {"source": "/models/absent"}}, "/models/absent"),
    ],
)
def test_it_is_said_with_a_next_step_and_told_once(
    serving: Serving, images: Images, what: str, change: dict[str, Any], says: str
) -> None:
    apply(named(what, images.engine.name, **change))
    try:
        until(f"{what} is said", lambda: says in stalled(what), 240)
        told = stalled(what)
        assert told.rstrip().endswith((".", "`")), told
        until("one Event", lambda: len(events(what, told.partition(":")[0])) == 1, 30)
    finally:
        kubectl("delete", "isv", what, "-n", HOME, "--wait=false")
    assert serving.status()["phase"] == "Serving"


def test_an_image_without_vllm_is_named(serving: Serving, images: Images) -> None:
    apply(named("no-vllm", images.base.name))
    try:
        until("it is said", lambda: "no-vllm-0: container engine: it ends again and again" in stalled("no-vllm"), 240)
        assert "vLLM" in stalled("no-vllm") or "vllm" in stalled("no-vllm")
    finally:
        kubectl("delete", "isv", "no-vllm", "-n", HOME, "--wait=false")


def test_a_quota_that_takes_no_pod_is_named(serving: Serving, images: Images) -> None:
    kubectl("create", "quota", "full", "-n", HOME, "--hard=pods=0")  # who is there stays
    try:
        apply(named("no-quota", images.engine.name))
        until("it is said", lambda: "PodsRefused: " in stalled("no-quota"), 90)
        assert "kubectl describe statefulset no-quota" in stalled("no-quota")
    finally:
        kubectl("delete", "isv", "no-quota", "-n", HOME, "--wait=false")
        kubectl("delete", "quota", "full", "-n", HOME)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "n" * 63}, "52"),
        ({"spec": {"extraArgs": ["--port=1"]}}, "Ebbtide sets this flag"),
        ({"spec": {"extraArgs": ["--middleware=x.y"]}}, "Ebbtide sets this flag"),
        ({"spec": {"extraArgs": ["--kv-transfer-config={}"]}}, "Ebbtide sets this flag"),
        ({"spec": {"imagge": "x"}}, "imagge"),
    ],
)
def test_it_is_refused_at_once(serving: Serving, images: Images, change: dict[str, Any], says: str) -> None:
    made = named("refused", images.engine.name)
    made["metadata"] |= {key: value for key, value in change.items() if key == "name"}
    made["spec"]["engine"] |= change.get("spec", {})
    with pytest.raises(CommandError, match=says):
        kubectl("apply", "-f", "-", stdin=json.dumps(made))
    assert serving.status()["phase"] == "Serving"
