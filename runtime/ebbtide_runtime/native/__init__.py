"""libebbtide for Python: arena, parked weights, control page, checksums. The only place that uses ctypes.

Nothing is loaded at import: the library is looked for at first use, at $EBBTIDE_LIBRARY or beside this file.
"""

from .arena import Arena, ArenaStats, Tag
from .page import Field, Gate, Measurement, Page, process_start
from .status import NativeError, Status

__all__ = [
    "Arena",
    "ArenaStats",
    "Field",
    "Gate",
    "Measurement",
    "NativeError",
    "Page",
    "Status",
    "Tag",
    "process_start",
]
