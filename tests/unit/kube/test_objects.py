"""What is read of pods and children, and why a pod does not run."""

from typing import Any

import pytest
from ebbtide_operator.kube.objects import read_child, read_pod, trouble_of


def raw(**changes: Any) -> Any:
    pod = {
        "metadata": {
            "name": "tiny-1",
            "namespace": "models",
            "uid": "u1",
            "resourceVersion": "42",
            "labels": {
                "ebbtide.dev/server": "tiny",
                "ebbtide.dev/group": "actor",
                "controller-revision-hash": "tiny-5",
            },
        },
        "status": {"phase": "Running", "podIP": "10.0.0.9", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    for path, value in changes.items():
        first, second = path.split("__")
        pod[first][second] = value  # type: ignore[index]
    return pod


def test_a_pod_is_read() -> None:
    pod = read_pod(raw())
    assert pod is not None
    assert (pod.key, pod.uid, pod.version, pod.server, pod.group) == (("models", "tiny-1"), "u1", 42, "tiny", "actor")
    assert (pod.ordinal, pod.ip, pod.revision, pod.ready, pod.deleting) == (1, "10.0.0.9", "tiny-5", True, False)
    assert pod.trouble == ""


@pytest.mark.parametrize("name", ["other-0", "tiny-x", "tiny", "tiny-01", "tiny--1"])
def test_a_pod_that_only_has_our_label_is_none_of_ours(name: str) -> None:
    assert read_pod(raw(metadata__name=name)) is None


@pytest.mark.parametrize("broken", [{}, {"metadata": None}, {"metadata": {"labels": []}, "status": 3}])
def test_nonsense_is_none_of_ours(broken: Any) -> None:
    assert read_pod(broken) is None


def waiting(why: str, said: str = "", **last: Any) -> Any:
    status = {"name": "engine", "state": {"waiting": {"reason": why, "message": said}}}
    return [status | ({"lastState": {"terminated": last}} if last else {})]


ENGINE = "status__containerStatuses"
LOOP = "CrashLoopBackOff"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {ENGINE: waiting("ImagePullBackOff", "Back-off pulling x")},
            "cannot be pulled: Back-off",
        ),
        ({"status__initContainerStatuses": waiting("ErrImageNeverPull")}, "imagePullPolicy is Never"),
        (
            {ENGINE: waiting(LOOP, exitCode=64, message="bad\n flag")},
            "refused. bad flag",
        ),
        ({ENGINE: waiting(LOOP, exitCode=127)}, "no python3"),
        ({ENGINE: waiting(LOOP, exitCode=1, message="x")}, "exit status 1. x"),
        ({ENGINE: waiting(LOOP, exitCode=137, reason="OOMKilled")}, "memory limit"),
        (
            {"status__phase": "Failed", "status__reason": "Evicted", "status__message": "disk"},
            "it failed (Evicted): disk",
        ),
        (
            {
                "status__phase": "Pending",
                "status__conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/1 nodes"}],
            },
            "no node takes it: 0/1 nodes",
        ),
    ],
)
def test_trouble_is_told_in_a_sentence(changes: Any, says: str) -> None:
    pod = read_pod(raw(**changes))
    assert pod is not None
    assert says in pod.trouble


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_a_pod_on_its_way_is_in_no_trouble(reason: str) -> None:
    assert trouble_of(raw(status__containerStatuses=waiting(reason))) == ""


def test_a_pod_that_is_ending_is_in_no_trouble() -> None:
    ending = raw(metadata__deletionTimestamp="2026-01-01T00:00:00Z", status__containerStatuses=waiting(LOOP))
    pod = read_pod(ending)
    assert pod is not None
    assert (pod.deleting, pod.trouble) == (True, "")


def test_a_long_message_keeps_its_end() -> None:
    why = trouble_of(raw(status__containerStatuses=waiting(LOOP, exitCode=1, message="x" * 5000 + "the reason")))
    assert len(why) < 700
    assert why.endswith("the reason. See `kubectl logs tiny-1 -c engine --previous`.")


def test_what_only_underlines_is_left_out_and_where_to_look_is_said() -> None:
    told = "call()\n    ~~~~^^\nOSError: /models/absent"
    why = trouble_of(raw(status__containerStatuses=waiting(LOOP, exitCode=71, message=told)))
    assert "died. call() OSError: /models/absent. See" in why
    pulled = trouble_of(raw(status__containerStatuses=waiting("ImagePullBackOff", "Back-off pulling x")))
    assert pulled.endswith("Back-off pulling x. See `kubectl describe pod tiny-1`.")


def test_a_child_knows_its_owner_and_moves_with_its_spec() -> None:
    found = {
        "metadata": {
            "name": "tiny",
            "namespace": "models",
            "uid": "u",
            "resourceVersion": "9",
            "generation": 4,
            "annotations": {"ebbtide.dev/digest": "d"},
            "ownerReferences": [{"uid": "other"}, {"uid": "me", "controller": True}],
        },
        "spec": {"replicas": 3},
        "status": {"observedGeneration": 3, "updateRevision": "tiny-2", "replicas": 2},
    }
    child = read_child(found, "StatefulSet")
    assert (child.owner, child.digest, child.mark, child.replicas, child.made) == ("me", "d", "4", 3, 2)
    assert (child.revision, child.settled) == ("tiny-2", False)


def test_a_child_without_a_generation_moves_with_its_version() -> None:
    assert read_child({"metadata": {"name": "x", "resourceVersion": "9"}}, "ConfigMap").mark == "9"
