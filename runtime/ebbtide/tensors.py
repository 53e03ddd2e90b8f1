"""Looks at torch tensors and numpy arrays as bytes, without importing either and, where possible, without a copy.

Neither package is a dependency: whoever passes a tensor has loaded its package already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from ebbtide_api.errors import EbbtideError, ErrorCode

CHUNK = 8 << 20


@dataclass(frozen=True)
class Kind:
    """A dtype: its name in safetensors, its size in bytes, and whether a cast to another float applies to it."""

    code: str
    size: int
    floating: bool = False


KINDS: dict[str, Kind] = {
    "float64": Kind("F64", 8, True),
    "float32": Kind("F32", 4, True),
    "float16": Kind("F16", 2, True),
    "bfloat16": Kind("BF16", 2, True),
    "float8_e4m3fn": Kind("F8_E4M3", 1),
    "float8_e5m2": Kind("F8_E5M2", 1),
    "int64": Kind("I64", 8),
    "int32": Kind("I32", 4),
    "int16": Kind("I16", 2),
    "int8": Kind("I8", 1),
    "uint64": Kind("U64", 8),
    "uint32": Kind("U32", 4),
    "uint16": Kind("U16", 2),
    "uint8": Kind("U8", 1),
    "bool": Kind("BOOL", 1),
}
SIZES: dict[str, int] = {kind.code: kind.size for kind in KINDS.values()}


@dataclass(frozen=True)
class Piece:
    """One tensor to be written. `chunks` yields its bytes; memory for a cast or a copy lives only while it runs."""

    name: str
    code: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterator[memoryview]]

    @property
    def length(self) -> int:
        """The tensor's size in bytes."""
        return prod(self.shape) * SIZES[self.code]


Names = Mapping[str, str] | Callable[[str], str]


def pieces_of(tensors: Mapping[str, object], *, dtype: object = None, names: Names | None = None) -> list[Piece]:
    """Return what is to be written of a state dict. Of tied tensors the first is kept, as checkpoints do.

    `dtype` casts the floating tensors; `names` renames (a mapping leaves what it lacks as it is).
    Raises INVALID_REQUEST, which names the tensor.
    """
    target = _cast_target(dtype)
    seen: set[object] = set()
    pieces: dict[str, Piece] = {}
    for name, tensor in tensors.items():
        view = _torch_view if _is_torch(tensor) else _numpy_view
        piece, storage = view(renamed(name, names), tensor, target)
        if storage is not None and storage in seen:
            continue
        if piece.name in pieces:
            refuse(piece.name, "is there twice, after renaming")
        seen.add(storage)
        pieces[piece.name] = piece
    return list(pieces.values())


def renamed(name: str, names: Names | None) -> str:
    """Apply the caller's `names` to one name."""
    if names is None:
        return name
    return names(name) if callable(names) else names.get(name, name)


def slices(view: memoryview) -> Iterator[memoryview]:
    """Cut bytes into chunks that fit a cache and a progress bar."""
    return (view[at : at + CHUNK] for at in range(0, len(view), CHUNK))


def refuse(name: str, why: str, next_action: str | None = None) -> NoReturn:
    """Raise INVALID_REQUEST about one tensor."""
    raise EbbtideError(ErrorCode.INVALID_REQUEST, f"tensor {name!r} {why}.", next_action=next_action, tensor=name)


def dtype_name(dtype: object) -> str:
    """Return `bfloat16` for torch.bfloat16, a numpy dtype or class, or a string."""
    return str(getattr(dtype, "__name__", None) or getattr(dtype, "name", None) or dtype).removeprefix("torch.")


def _cast_target(dtype: object) -> str | None:
    if dtype is None:
        return None
    name = dtype_name(dtype)
    if name not in KINDS or not KINDS[name].floating:
        allowed = [known for known, kind in KINDS.items() if kind.floating]
        raise EbbtideError(ErrorCode.INVALID_REQUEST, f"weights cannot be cast to {name!r}.", allowed=allowed)
    return name


def _chosen(name: str, dtype: str, target: str | None) -> tuple[Kind, bool]:
    """Return the dtype to write, and whether that needs a cast."""
    kind = KINDS.get(dtype)
    if kind is None:
        refuse(name, f"has dtype {dtype}, which safetensors cannot hold")
    if target is None or not kind.floating or target == dtype:
        return kind, False
    return KINDS[target], True


def _is_torch(tensor: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _torch_view(name: str, tensor: Any, target: str | None) -> tuple[Piece, object]:
    torch = sys.modules["torch"]
    if hasattr(tensor, "full_tensor"):
        refuse(name, "is one shard of a distributed tensor", "Gather the state dict first (full_state_dict=True).")
    if tensor.is_meta or tensor.layout is not torch.strided:
        refuse(name, "has no plain memory (a meta or sparse tensor)")
    kind, cast = _chosen(name, dtype_name(tensor.dtype), target)
    detached = tensor.detach()

    def chunks() -> Iterator[memoryview]:
        there = detached.to(getattr(torch, target)) if cast and target else detached
        # Seen as bytes, because numpy knows no bfloat16. On the CPU all of this shares memory with the tensor.
        yield from slices(memoryview(there.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))

    piece = Piece(name, kind.code, tuple(tensor.shape), chunks)
    place = (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), kind.code)
    return piece, place if tensor.numel() else None


def _numpy_view(name: str, array: Any, target: str | None) -> tuple[Piece, object]:
    if not hasattr(array, "__array_interface__"):
        refuse(name, f"is a {type(array).__name__}, not a torch tensor or a numpy array")
    kind, cast = _chosen(name, array.dtype.name, target)

    def chunks() -> Iterator[memoryview]:
        there = _cast_array(name, array, str(target)) if cast else array
        little = there.astype(there.dtype.newbyteorder("<"), order="C", copy=False)
        yield from slices(memoryview(little.reshape(-1).view("uint8")))

    place = (array.__array_interface__["data"][0], array.shape, array.strides, kind.code)
    return Piece(name, kind.code, tuple(array.shape), chunks), place if array.size else None


def _cast_array(name: str, array: Any, target: str) -> Any:
    try:
        return array.astype(target)
    except TypeError:
        refuse(name, f"cannot be cast to {target} by numpy", "Import ml_dtypes, or pass torch tensors.")


def total(pieces: Iterable[Piece]) -> int:
    """Return the bytes of all pieces."""
    return sum(piece.length for piece in pieces)
