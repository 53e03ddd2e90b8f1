"""The checks on a manifest that need no bytes: against the original checkpoint, and against itself. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from ebbtide_api.manifest import FORMAT, FileEntry, Manifest, TensorEntry

from .checkpoint import MAX_HEADER, Expected, Placed


class Reason(StrEnum):
    """Why published weights are refused: `details.reason` of MANIFEST_INVALID."""

    TORN = "TORN"
    TENSOR_MISSING = "TENSOR_MISSING"
    TENSOR_UNKNOWN = "TENSOR_UNKNOWN"
    SHAPE_MISMATCH = "SHAPE_MISMATCH"
    DTYPE_MISMATCH = "DTYPE_MISMATCH"
    CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
    VERSION_MISMATCH = "VERSION_MISMATCH"
    UNREADABLE = "UNREADABLE"


@dataclass(frozen=True)
class Bad:
    """A refusal: its reason, a sentence, and the tensor or file that it is about."""

    reason: Reason
    message: str
    tensor: str | None = None


# Bits of a dtype, by its safetensors name.
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}


def check_manifest(manifest: Manifest, version: int, expected: Expected) -> Bad | None:
    """Return why a manifest cannot be the weights of `version`, or None when it can."""
    if manifest.format != FORMAT:
        return Bad(Reason.UNREADABLE, f"the format is {manifest.format!r}, not {FORMAT!r}")
    if manifest.version != version:
        return Bad(Reason.VERSION_MISMATCH, f"the manifest is of version {manifest.version}, not {version}")
    return _duplicates(manifest) or _against(manifest.tensors, expected) or _placement(manifest)


def _duplicates(manifest: Manifest) -> Bad | None:
    for kind, names in (("tensor", [t.name for t in manifest.tensors]), ("file", [f.name for f in manifest.files])):
        seen: set[str] = set()
        for name in names:
            if name in seen:
                return Bad(Reason.UNREADABLE, f"the {kind} {name!r} is listed twice", name)
            seen.add(name)
    return None


def _against(tensors: Iterable[TensorEntry], expected: Expected) -> Bad | None:
    left = dict(expected.tensors)
    for tensor in tensors:
        kind = left.pop(tensor.name, None)
        if kind is None:
            return Bad(Reason.TENSOR_UNKNOWN, f"the model has no tensor {tensor.name!r}", tensor.name)
        if tuple(tensor.shape) != kind.shape:
            sentence = f"{tensor.name!r} has shape {tensor.shape}, the model has {list(kind.shape)}"
            return Bad(Reason.SHAPE_MISMATCH, sentence, tensor.name)
        if tensor.dtype != kind.dtype:
            sentence = f"{tensor.name!r} has dtype {tensor.dtype}, the model has {kind.dtype}"
            return Bad(Reason.DTYPE_MISMATCH, sentence, tensor.name)
    missing = sorted(left.keys() - expected.tied)
    if missing:
        return Bad(Reason.TENSOR_MISSING, f"{len(missing)} tensors are missing; the first: {missing[0]!r}", missing[0])
    return None


def _placement(manifest: Manifest) -> Bad | None:
    files = {file.name: file for file in manifest.files}
    placed: dict[str, list[TensorEntry]] = {name: [] for name in files}
    for tensor in manifest.tensors:
        if tensor.file not in files:
            return Bad(Reason.UNREADABLE, f"{tensor.name!r} is in {tensor.file!r}, which is not listed", tensor.name)
        if tensor.length * 8 != prod(tensor.shape) * _BITS.get(tensor.dtype, 0):
            sentence = f"{tensor.name!r} has {tensor.length} bytes, not those of its shape and dtype"
            return Bad(Reason.TORN, sentence, tensor.name)
        placed[tensor.file].append(tensor)
    return next((bad for name, file in files.items() if (bad := _tiles(file, placed[name]))), None)


def _tiles(file: FileEntry, tensors: list[TensorEntry]) -> Bad | None:
    """Every byte of the file must be vouched for, once: the header, then the tensors without hole or overlap."""
    if not 8 <= file.header_length <= MAX_HEADER + 8:
        return Bad(Reason.UNREADABLE, f"{file.name!r} has a header of {file.header_length} bytes", file.name)
    end = file.header_length
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.length)):
        if tensor.offset != end:
            return Bad(Reason.TORN, f"{tensor.name!r} starts at byte {tensor.offset}, not {end}", tensor.name)
        end += tensor.length
    if end != file.length:
        return Bad(Reason.TORN, f"{file.name!r} has {file.length} bytes, and {end} are vouched for", file.name)
    return None


def check_header(file: str, header: Mapping[str, Placed], tensors: Iterable[TensorEntry]) -> Bad | None:
    """Compare a file's own header, which the engine will believe, with the manifest, which was checked."""
    left = dict(header)
    for tensor in tensors:
        found = left.pop(tensor.name, None)
        if found is None:
            return Bad(Reason.TENSOR_MISSING, f"the header of {file!r} has no {tensor.name!r}", tensor.name)
        if found.kind.shape != tuple(tensor.shape):
            return Bad(Reason.SHAPE_MISMATCH, f"the header of {file!r} has another shape", tensor.name)
        if found.kind.dtype != tensor.dtype:
            return Bad(Reason.DTYPE_MISMATCH, f"the header of {file!r} has another dtype", tensor.name)
        if (found.offset, found.length) != (tensor.offset, tensor.length):
            return Bad(Reason.TORN, f"the header of {file!r} has another place", tensor.name)
    extra = next(iter(left), None)
    return Bad(Reason.TENSOR_UNKNOWN, f"the header of {file!r} has also {extra!r}", extra) if left else None
