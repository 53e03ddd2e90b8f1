"""The safetensors format, with the safetensors library as the judge."""

import json
from pathlib import Path

import pytest
import torch
from ebbtide import EbbtideError, ErrorCode
from ebbtide.safetensors import INDEX, arrange, files_of, header_of, pieces_in
from ebbtide.tensors import pieces_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
SHAPES = st.lists(st.integers(0, 5), max_size=3)
STATES = st.dictionaries(
    st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=6
)


def write(path: Path, state: dict[str, torch.Tensor]) -> None:
    pieces = arrange(pieces_of(state))
    path.write_bytes(header_of(pieces) + b"".join(bytes(chunk) for piece in pieces for chunk in piece.chunks()))


def seen(state: dict[str, torch.Tensor]) -> dict[str, object]:
    return {
        name: (tensor.dtype, tensor.shape, tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        for name, tensor in state.items()
    }


@given(STATES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_library_reads_what_we_write(tmp_path: Path, drawn: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    state = {name: torch.rand(shape).mul(9).to(dtype) for name, (dtype, shape) in drawn.items()}
    write(tmp_path / "model.safetensors", state)
    assert seen(load_file(tmp_path / "model.safetensors")) == seen(state)


@given(STATES)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_we_read_what_the_library_writes(tmp_path: Path, drawn: dict[str, tuple[torch.dtype, list[int]]]) -> None:
    state = {name: torch.rand(shape).mul(9).to(dtype) for name, (dtype, shape) in drawn.items()}
    save_file(state, tmp_path / "theirs.safetensors", metadata={"format": "pt"})
    pieces = arrange(pieces_in([tmp_path / "theirs.safetensors"]))
    ours = tmp_path / "ours.safetensors"
    ours.write_bytes(header_of(pieces) + b"".join(bytes(chunk) for piece in pieces for chunk in piece.chunks()))
    assert seen(load_file(ours)) == seen(state)


def test_wide_tensors_come_first_so_that_all_are_aligned(tmp_path: Path) -> None:
    pieces = arrange(pieces_of({"a": torch.ones(3, dtype=torch.uint8), "b": torch.ones(2, dtype=torch.float64)}))
    assert [piece.name for piece in pieces] == ["b", "a"]
    assert len(header_of(pieces)) % 8 == 0


# Which files


def test_a_file_a_folder_and_an_index(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors", "adapter.safetensors"):
        write(tmp_path / name, {name: torch.ones(1)})
    assert files_of(tmp_path / "a.safetensors") == [tmp_path / "a.safetensors"]
    assert [path.name for path in files_of(tmp_path)] == ["a.safetensors", "adapter.safetensors", "b.safetensors"]
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "a.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert [path.name for path in files_of(tmp_path)] == ["a.safetensors", "b.safetensors"]


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError, match="holds no") as caught:
        files_of(tmp_path)
    assert caught.value.details == {"path": str(tmp_path)}


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"weight_map": []}', '{"weight_map": {"x": "../../etc/passwd"}}'])
def test_a_wrong_index_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(EbbtideError) as caught:
        files_of(tmp_path)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert INDEX in caught.value.message


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name, {"w": torch.ones(1)})
    with pytest.raises(EbbtideError, match="another file holds too"):
        pieces_in([tmp_path / "a", tmp_path / "b"])


def test_names_are_mapped(tmp_path: Path) -> None:
    write(tmp_path / "a", {"w": torch.ones(1)})
    assert [piece.name for piece in pieces_in([tmp_path / "a"], {"w": "v"})] == ["v"]


# Torn files


def header(entries: object) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TORN = {
    "empty": b"",
    "short": b"\x05\x00",
    "endless header": (1 << 60).to_bytes(8, "little") + b"{}",
    "not json": (4).to_bytes(8, "little") + b"nope",
    "not utf-8": (4).to_bytes(8, "little") + b"\xff\xff\xff\xff",
    "a list": header([1, 2, 3]),
    "no dtype": header({"w": {"shape": [2], "data_offsets": [0, 8]}}) + bytes(8),
    "no entry": header({"w": 7}) + bytes(8),
    "unknown dtype": header({"w": {**GOOD, "dtype": "C64"}}) + bytes(8),
    "wrong size": header({"w": {**GOOD, "shape": [3]}}) + bytes(12),
    "backwards": header({"w": {**GOOD, "data_offsets": [8, 0]}}) + bytes(8),
    "truncated": header({"w": GOOD}) + bytes(7),
    "negative": header({"w": {**GOOD, "data_offsets": [-8, 0]}}) + bytes(8),
}


@pytest.mark.parametrize("kind", TORN)
def test_a_torn_file_is_refused_by_its_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "torn.safetensors"
    path.write_bytes(TORN[kind])
    with pytest.raises(EbbtideError) as caught:
        pieces_in([path])
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert str(path) in caught.value.message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EbbtideError, match="cannot be read"):
        pieces_in([tmp_path / "gone.safetensors"])


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, {"w": torch.ones(100)})
    (piece,) = pieces_in([path])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 4)
    with pytest.raises(EbbtideError, match="before a tensor does"):
        list(piece.chunks())
