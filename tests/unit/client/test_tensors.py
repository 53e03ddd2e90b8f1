"""Tensors as bytes: every dtype, every layout, nothing copied that need not be."""

import numpy as np
import pytest
import torch
from ebbtide import EbbtideError, ErrorCode
from ebbtide.tensors import CHUNK, KINDS, dtype_name, pieces_of, total


def data(piece) -> bytes:  # type: ignore[no-untyped-def]
    return b"".join(bytes(chunk) for chunk in piece.chunks())


def one(tensor: object, **options: object):  # type: ignore[no-untyped-def]
    (piece,) = pieces_of({"w": tensor}, **options)  # type: ignore[arg-type]
    assert len(data(piece)) == piece.length
    return piece


@pytest.mark.parametrize("name", KINDS)
def test_every_dtype_of_torch(name: str) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
    piece = one(tensor)
    assert (piece.code, piece.shape) == (KINDS[name].code, (2, 3))
    assert data(piece) == tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", [name for name in KINDS if name != "bfloat16" and "float8" not in name])
def test_every_dtype_of_numpy(name: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(name)
    piece = one(array)
    assert (piece.code, piece.shape) == (KINDS[name].code, (2, 3))
    assert data(piece) == array.tobytes()


def test_views_are_written_as_they_look() -> None:
    matrix = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    for view in (matrix.T, matrix[:, 1:3], matrix[::2], matrix.expand(2, 3, 4)):
        assert data(one(view)) == view.contiguous().numpy().tobytes()
        assert data(one(view.numpy())) == view.contiguous().numpy().tobytes()


def test_scalars_and_empty_tensors() -> None:
    assert one(torch.tensor(1.0)).shape == ()
    assert data(one(np.float32(1.0) + np.zeros((), np.float32))) == np.float32(1).tobytes()
    assert one(torch.empty(0, 3)).length == 0
    assert one(np.empty((0, 3))).length == 0


def test_big_endian_arrays_are_turned() -> None:
    assert data(one(np.arange(3, dtype=">i4"))) == np.arange(3, dtype="<i4").tobytes()


def test_parameters_need_no_detaching() -> None:
    assert one(torch.nn.Parameter(torch.ones(2))).length == 8


def test_torch_memory_is_shared_not_copied() -> None:
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    piece = one(tensor)
    (chunk,) = piece.chunks()
    tensor += 1
    assert bytes(chunk) == b"\x80\x3f" * 4


def test_numpy_memory_is_shared_not_copied() -> None:
    array = np.zeros(4, dtype=np.uint8)
    (chunk,) = one(array).chunks()
    array += 1
    assert bytes(chunk) == b"\x01" * 4


def test_large_tensors_come_in_chunks() -> None:
    tensor = torch.zeros(CHUNK + 1, dtype=torch.uint8)
    assert [len(chunk) for chunk in one(tensor).chunks()] == [CHUNK, 1]


# Tied tensors


def test_of_tied_tensors_the_first_is_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 2))
    pieces = pieces_of({"embed.weight": weight, "norm": torch.ones(2), "lm_head.weight": weight})
    assert [piece.name for piece in pieces] == ["embed.weight", "norm"]
    assert total(pieces) == 40


def test_tied_arrays_too() -> None:
    array = np.ones(4)
    assert [piece.name for piece in pieces_of({"a": array, "b": array, "c": array.copy()})] == ["a", "c"]


def test_parts_of_one_storage_are_not_tied() -> None:
    fused = torch.arange(6, dtype=torch.float32)
    state = {
        "q": fused[:3],
        "k": fused[3:],
        "all": fused,
        "square": fused.reshape(2, 3),
        "bits": fused.view(torch.int32),
    }
    assert len(pieces_of(state)) == 5


def test_empty_tensors_are_never_tied() -> None:
    assert len(pieces_of({"a": torch.empty(0), "b": torch.empty(0)})) == 2


# Casts and names


@pytest.mark.parametrize("dtype", [torch.bfloat16, "bfloat16", "torch.bfloat16"])
def test_floats_are_cast_and_integers_are_not(dtype: object) -> None:
    state = {"w": torch.tensor([1.0, 2.5]), "ids": torch.arange(3), "half": torch.ones(1, dtype=torch.bfloat16)}
    pieces = pieces_of(state, dtype=dtype)
    assert [piece.code for piece in pieces] == ["BF16", "I64", "BF16"]
    assert data(pieces[0]) == state["w"].to(torch.bfloat16).view(torch.uint8).numpy().tobytes()


def test_a_cast_does_not_untie() -> None:
    weight = torch.ones(2)
    assert len(pieces_of({"a": weight, "b": weight}, dtype="float16")) == 1


def test_arrays_are_cast() -> None:
    assert data(one(np.ones(2, np.float32), dtype=np.float16)) == np.ones(2, np.float16).tobytes()


def test_names_are_mapped() -> None:
    state = {"module.a": torch.ones(1), "b": torch.ones(2)}
    assert [piece.name for piece in pieces_of(state, names={"module.a": "a"})] == ["a", "b"]
    stripped = pieces_of(state, names=lambda name: name.removeprefix("module."))
    assert [piece.name for piece in stripped] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [(torch.float16, "float16"), (np.float16, "float16"), (np.dtype("f2"), "float16"), ("float16", "float16")],
)
def test_dtypes_are_known_by_one_name(given: object, expected: str) -> None:
    assert dtype_name(given) == expected


# What cannot be written


REFUSED = {
    "complex64": torch.ones(1, dtype=torch.complex64),
    "meta": torch.empty(2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "list": [1.0, 2.0],
    "str": np.array(["x"]),
    "object": np.array([object()]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_written_is_refused_by_name(kind: str) -> None:
    with pytest.raises(EbbtideError, match="tensor 'w'") as caught:
        pieces_of({"w": REFUSED[kind]})
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.details == {"tensor": "w"}


def test_a_shard_of_a_distributed_tensor_is_refused() -> None:
    tensor = torch.ones(2)
    tensor.full_tensor = lambda: tensor  # type: ignore[attr-defined]
    with pytest.raises(EbbtideError, match="one shard") as caught:
        pieces_of({"w": tensor})
    assert "Gather" in caught.value.next_action


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "fp16", 7])
def test_a_cast_to_anything_but_a_float_is_refused(dtype: object) -> None:
    with pytest.raises(EbbtideError, match="cannot be cast") as caught:
        pieces_of({"w": torch.ones(1)}, dtype=dtype)
    assert "bfloat16" in caught.value.details["allowed"]


def test_a_cast_that_numpy_lacks_is_refused() -> None:
    (piece,) = pieces_of({"w": np.ones(1)}, dtype="bfloat16")
    if "bfloat16" in np.sctypeDict:
        pytest.skip("ml_dtypes is loaded")
    with pytest.raises(EbbtideError, match="by numpy"):
        data(piece)


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(EbbtideError, match="twice"):
        pieces_of({"a": torch.ones(1), "b": torch.ones(2)}, names={"b": "a"})
