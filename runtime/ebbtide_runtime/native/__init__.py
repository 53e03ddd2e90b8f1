"""libebbtide for Python: arena, parked weights, control page, checksums. The only place that uses ctypes.

Nothing is loaded at import: the library is looked for at first use, at $EBBTIDE_LIBRARY or beside this file.
"""

from .arena import Arena, ArenaStats, Tag
from .page import Field, Gate, Measurement, Page, process_start
from .parked import Cancel, Parked, ParkedInfo
from .status import NativeError, Status
from .transfer import Range, copy, crc32c, crc32c_is_hardware, ingest

__all__ = [
    "Arena",
    "ArenaStats",
    "Cancel",
    "Field",
    "Gate",
    "Measurement",
    "NativeError",
    "Page",
    "Parked",
    "ParkedInfo",
    "Range",
    "Status",
    "Tag",
    "copy",
    "crc32c",
    "crc32c_is_hardware",
    "ingest",
    "process_start",
]
