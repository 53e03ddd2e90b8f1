"""The verbs' bodies: bounds, defaults, and names in paths and headers."""

import pytest
from ebbtide_api import verbs
from ebbtide_api.manifest import MANIFEST, FileEntry, Manifest, TensorEntry
from ebbtide_api.verbs import (
    BeginUpdateRequest,
    Canary,
    Drain,
    DrainMode,
    GrantRequest,
    LeaseRequest,
    OnDeadline,
    ReclaimRequest,
    ResumeRequest,
    SleepRequest,
    Verb,
    WeightsSource,
)
from pydantic import ValidationError


def test_verbs_are_the_designs_path_segments() -> None:
    steps = (
        "sleep wake-weights begin-update commit-update abort-update reload wake-kv resume pause release-kv reconcile"
    )
    assert {str(verb) for verb in Verb} == {*steps.split(), "grant"}


def test_headers() -> None:
    assert verbs.IDEMPOTENCY_KEY == "Idempotency-Key"
    assert [f"Ebbtide-{name}" for name in ("Epoch", "Deadline", "Instance", "Secret")] == [
        verbs.EPOCH,
        verbs.DEADLINE,
        verbs.INSTANCE,
        verbs.SECRET,
    ]


def test_a_sleep_waits_then_aborts_and_lets_the_policy_choose_the_level() -> None:
    assert SleepRequest() == SleepRequest(
        level=0, drain=Drain(mode=DrainMode.WAIT, timeout=30, on_deadline=OnDeadline.ABORT), settle=0.2
    )


def test_a_resume_always_has_a_canary() -> None:
    assert ResumeRequest().canary == Canary()
    with pytest.raises(ValidationError):
        ResumeRequest.model_validate({"canary": None})


def test_a_reclaim_without_a_version_brings_the_old_weights_back() -> None:
    assert ReclaimRequest().wire() == {}


@pytest.mark.parametrize(
    ("model", "raw"),
    [
        (SleepRequest, {"level": 3}),
        (SleepRequest, {"level": -1}),
        (SleepRequest, {"settle": 61}),
        (SleepRequest, {"needMiB": -1}),
        (SleepRequest, {"drain": {"timeout": 0}}),
        (SleepRequest, {"drain": {"timeout": float("nan")}}),
        (SleepRequest, {"drain": {"mode": "wait"}}),
        (BeginUpdateRequest, {"version": 0, "source": {"path": "/x"}}),
        (BeginUpdateRequest, {"version": 1}),
        (ReclaimRequest, {"version": 0}),
        (GrantRequest, {"boot": 0}),
        (LeaseRequest, {"holder": ""}),
        (LeaseRequest, {"holder": "t", "ttlSeconds": 0}),
        (LeaseRequest, {"holder": "t", "ttlSeconds": 86401}),
        (LeaseRequest, {"holder": "t" * 254}),
        (LeaseRequest, {"holder": "t", "pid": 0}),
        (Canary, {"tokens": 0}),
        (Canary, {"tokens": 257}),
    ],
)
def test_out_of_bounds(model: type[verbs.Message], raw: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(raw)


def test_an_update_names_its_source() -> None:
    raw = {"version": 7, "source": {"path": "/shm/v7"}}
    assert BeginUpdateRequest.model_validate(raw) == BeginUpdateRequest(version=7, source=WeightsSource(path="/shm/v7"))


def tensor(**changes: object) -> dict[str, object]:
    entry: dict[str, object] = {"name": "lm_head.weight", "file": "model-00001.safetensors", "offset": 8, "length": 4}
    return entry | {"shape": [2, 1], "dtype": "BF16", "crc32c": 2**32 - 1} | changes


def file(**changes: object) -> dict[str, object]:
    return {"name": "model-00001.safetensors", "length": 12, "headerLength": 8, "headerCrc32c": 0} | changes


def test_a_manifest_is_read_as_it_is_written() -> None:
    raw = {"format": "ebbtide.dev/weights.v1", "version": 7, "files": [file()], "tensors": [tensor()]}
    manifest = Manifest.model_validate(raw)
    assert manifest.wire() == raw
    assert manifest.files == [FileEntry(name="model-00001.safetensors", length=12, header_length=8, header_crc32c=0)]
    assert manifest.tensors[0].crc32c == 2**32 - 1
    assert MANIFEST == "manifest.json"


@pytest.mark.parametrize(
    "wrong",
    [
        {"file": "../etc/passwd"},
        {"file": "/etc/passwd"},
        {"file": ".hidden"},
        {"file": "a/b"},
        {"file": ""},
        {"file": "a\n"},
        {"offset": -1},
        {"length": -1},
        {"crc32c": 2**32},
        {"crc32c": -1},
        {"dtype": "bf16"},
        {"name": ""},
        {"shape": [1] * 17},
        {"stride": 1},
    ],
)
def test_a_wrong_tensor_entry_is_refused(wrong: dict[str, object]) -> None:
    TensorEntry.model_validate(tensor())
    with pytest.raises(ValidationError):
        TensorEntry.model_validate(tensor(**wrong))


@pytest.mark.parametrize("wrong", [{"name": "../x"}, {"length": -1}, {"headerCrc32c": 2**32}, {"headerLength": -1}])
def test_a_wrong_file_entry_is_refused(wrong: dict[str, object]) -> None:
    FileEntry.model_validate(file())
    with pytest.raises(ValidationError):
        FileEntry.model_validate(file(**wrong))


@pytest.mark.parametrize("missing", ["version", "files", "tensors"])
def test_a_partial_manifest_is_refused(missing: str) -> None:
    raw = {"version": 1, "files": [file()], "tensors": [tensor()]}
    del raw[missing]
    with pytest.raises(ValidationError, match=missing):
        Manifest.model_validate(raw)


@pytest.mark.parametrize("empty", ["files", "tensors"])
def test_an_empty_manifest_is_refused(empty: str) -> None:
    with pytest.raises(ValidationError, match=empty):
        Manifest.model_validate({"version": 1, "files": [file()], "tensors": [tensor()], empty: []})
