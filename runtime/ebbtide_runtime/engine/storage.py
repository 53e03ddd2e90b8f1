"""Torch tensors whose bytes lie in the native arena.

Inside `ArenaMode` every tensor that torch makes gets arena storage. When the last tensor of a storage goes, its block
goes back to the arena, so temporaries leave nothing behind.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

if TYPE_CHECKING:
    from ..native import Tag

_aten = torch.ops.aten
# Made in the arena from the start: neither copied, nor held twice for a moment.
_DIRECT = frozenset({_aten.empty.memory_format, _aten.empty_strided.default, _aten.zeros.default})
_ZEROED = frozenset({_aten.zeros.default})
# Their result is new although it shares its storage with the argument: `torch.tensor` ends in one.
_FRESH = frozenset({_aten.lift_fresh.default, _aten.lift_fresh_copy.default})


class Allocator(Protocol):
    """The part of the native arena that storage needs."""

    def allocate(self, tag: Tag, size: int, align: int = 64) -> int:
        """Return the address of a new block."""

    def free(self, address: int) -> None:
        """Give a block back."""


class Region(NamedTuple):
    """A range of memory: address and size in bytes."""

    address: int
    size: int


class _Memory:
    """What numpy calls an array: a range of memory, and something to keep alive."""

    def __init__(self, region: Region) -> None:
        shape = (region.size,)
        self.__array_interface__ = {"data": (region.address, False), "shape": shape, "typestr": "|u1", "version": 3}


def view(region: Region) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the bytes of a range as an array over the very memory."""
    return np.asarray(_Memory(region))


class Blocks:
    """The live blocks of one tag of the arena."""

    def __init__(self, arena: Allocator, tag: Tag) -> None:
        self._arena = arena
        self._tag = tag
        self._live: dict[int, int] = {}

    def storage(self, size: int) -> torch.UntypedStorage:
        """Return a new storage of `size` bytes. Its block is freed when the storage is."""
        region = Region(self._arena.allocate(self._tag, size), size)
        owner = _Memory(region)
        self._live[region.address] = size
        # Not at exit: the kernel takes it all back, and tensors may still be in use then.
        weakref.finalize(owner, self._free, region.address).atexit = False
        return torch.from_numpy(np.asarray(owner)).untyped_storage()

    def _free(self, address: int) -> None:
        del self._live[address]
        self._arena.free(address)

    def regions(self) -> list[Region]:
        """Return the live blocks by address."""
        return sorted(Region(address, size) for address, size in self._live.copy().items())

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's storage is one of the live blocks."""
        return tensor.untyped_storage().data_ptr() in self._live


class ArenaMode(TorchDispatchMode):  # type: ignore[misc]
    """While this is on in a thread, the tensors it makes lie in the arena."""

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self._blocks = blocks

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DIRECT and _on_cpu(kwargs.get("device")):
            return self._make(func, args, kwargs)
        result = func(*args, **kwargs)
        known = set() if func in _FRESH else {_key(each) for each in _tensors((args, kwargs))}
        moved: dict[int, torch.UntypedStorage] = {}
        return tree_map_only(torch.Tensor, lambda each: self._move(each, known, moved), result)

    def _make(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        """Make an empty or zeroed tensor of the shape that `func` would give it."""
        shape = func(*args, **{**kwargs, "device": "meta", "pin_memory": None})
        size = shape.untyped_storage().nbytes()
        if not size:
            return func(*args, **kwargs)
        made = _like(shape, self._blocks.storage(size))
        return made.zero_() if func in _ZEROED else made

    def _move(self, tensor: torch.Tensor, known: set[int], moved: dict[int, torch.UntypedStorage]) -> torch.Tensor:
        """Return the tensor in arena storage, unless it shares its storage with an argument."""
        if not _is_plain(tensor) or _key(tensor) in known or self._blocks.holds(tensor):
            return tensor
        key = _key(tensor)
        if key not in moved:
            old = tensor.untyped_storage()
            moved[key] = self._blocks.storage(old.nbytes())
            moved[key].copy_(old)
        return _like(tensor, moved[key])


def _like(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor) and _is_plain(each)]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has bytes of its own on the CPU."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return bool(tensor.untyped_storage().nbytes())


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _on_cpu(device: Any) -> bool:
    return device is None or torch.device(device).type == "cpu"


class Placed(NamedTuple):
    """Where a named tensor lies and what it is: the same before and after a reload."""

    name: str
    address: int
    shape: tuple[int, ...]
    dtype: str


def place(named: Iterable[tuple[str, torch.Tensor]]) -> list[Placed]:
    """Return where tensors lie, by name."""
    return sorted(Placed(name, each.data_ptr(), tuple(each.shape), str(each.dtype)) for name, each in named)


def layout_digest(placed: Iterable[Placed], base: int) -> int:
    """Return 64 bits that differ when any tensor lies elsewhere in the arena, or is another one."""
    digest = hashlib.blake2b(digest_size=8)
    for each in placed:
        digest.update(f"{each.name}\0{each.address - base}\0{each.shape}\0{each.dtype}\n".encode())
    return int.from_bytes(digest.digest(), "big")


def outside(named: Iterable[tuple[str, torch.Tensor]], blocks: Blocks) -> list[str]:
    """Name the tensors with bytes outside the arena."""
    return [name for name, each in named if each.numel() and not blocks.holds(each)]


def unshared(blocks: Blocks, tensors: Iterable[torch.Tensor]) -> list[Region]:
    """Return the live blocks that none of the tensors use."""
    used = {each.untyped_storage().data_ptr() for each in tensors}
    return [region for region in blocks.regions() if region.address not in used]
