"""What a checkpoint consists of, by its headers."""

import json
import struct
from pathlib import Path

import pytest
from ebbtide_runtime.agent.checkpoint import (
    MAX_HEADER,
    CheckpointError,
    Placed,
    TensorShape,
    copy_headers,
    parse_header,
    read_expected,
    read_header,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.checkpoints import SHAPES, make_model, safetensors


def header(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def test_a_header_is_parsed_to_absolute_places() -> None:
    data = header({"__metadata__": {}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]}})
    assert parse_header(data) == {"a": Placed(TensorShape((2, 3), "F32"), len(data) + 8, 24)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 5) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 2) + b"\xff\xff",
        header({"a": {}}),
        header({"a": None}),
        header({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": ["x", 4]}}),
    ],
)
def test_a_malformed_header_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_header(data)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_refused(data: bytes) -> None:
    try:
        found = parse_header(struct.pack("<Q", len(data)) + data)
    except CheckpointError:
        return
    assert isinstance(found, dict)


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", MAX_HEADER + 1))
    with pytest.raises(CheckpointError, match="more than"):
        read_header(tmp_path / "m.safetensors")


@pytest.mark.parametrize("shards", [1, 3])
def test_the_original_checkpoint_says_what_is_expected(tmp_path: Path, shards: int) -> None:
    expected = read_expected(str(make_model(tmp_path, shards=shards)), {})
    assert expected.tensors == {name: TensorShape(tuple(shape), dtype) for name, (shape, dtype) in SHAPES.items()}
    assert expected.tied == frozenset()


@pytest.mark.parametrize("config", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}])
def test_a_tied_head_may_be_absent(tmp_path: Path, config: dict[str, object]) -> None:
    make_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_expected(str(tmp_path), {}).tied == {"lm_head.weight"}


def test_an_index_says_which_files_count(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "consolidated.safetensors").write_bytes(safetensors({"other": ([1], "F32")})[0])
    index = {"weight_map": dict.fromkeys(SHAPES, "model-0.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_expected(str(tmp_path), {}).tensors) == set(SHAPES)


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path: Path) -> None:
    cached = tmp_path / "hub" / "models--org--tiny"
    make_model(cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc\n")
    assert set(read_expected("org/tiny", {"HF_HOME": str(tmp_path)}).tensors) == set(SHAPES)


@pytest.mark.parametrize("spoil", ["nowhere", "empty", "damaged", "config", "index"])
def test_a_checkpoint_that_cannot_be_read_says_so(tmp_path: Path, spoil: str) -> None:
    model = make_model(tmp_path / "model")
    if spoil == "empty":
        (model / "model-0.safetensors").unlink()
    if spoil == "damaged":
        (model / "model-0.safetensors").write_bytes(b"\0" * 4)
    if spoil == "config":
        (model / "config.json").write_text("{")
    if spoil == "index":
        (model / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    with pytest.raises(CheckpointError):
        read_expected("org/none" if spoil == "nowhere" else str(model), {"HF_HOME": str(tmp_path)})


@pytest.mark.parametrize("shards", [1, 3])
def test_a_copy_of_the_headers_says_the_same_and_holds_no_weights(tmp_path: Path, shards: int) -> None:
    model, copy = make_model(tmp_path / "model", shards=shards), tmp_path / "home" / "checkpoint"
    (model / "config.json").write_text('{"tie_word_embeddings": true}')
    copy.mkdir(parents=True)
    (copy / "of-another-model.safetensors").write_bytes(b"old")
    copy_headers(str(model), copy, {})
    assert read_expected(str(copy), {}) == read_expected(str(model), {})
    for file in copy.glob("*.safetensors"):
        assert file.stat().st_size < (model / file.name).stat().st_size
    assert [path.name for path in copy.parent.iterdir()] == ["checkpoint"]


def test_a_model_without_headers_leaves_the_copy_alone(tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    copy_headers(str(make_model(tmp_path / "model")), copy, {})
    with pytest.raises(CheckpointError):
        copy_headers(str(tmp_path / "gone"), copy, {"HF_HOME": str(tmp_path)})
    assert set(read_expected(str(copy), {}).tensors) == set(SHAPES)
