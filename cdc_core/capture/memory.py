"""How this process gives memory back to the system.

Batches come and go by tens of megabytes, on several threads. Left to itself, the C library learns
from the first large block that was freed to keep such blocks for later, and keeps some for each
thread: 60 MB more while a backlog is staged.
"""

from __future__ import annotations

import ctypes

import pyarrow as pa

# Source: glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The columns of a batch lie above, and go back when they are freed; most of what decoding takes for
# a moment lies below, and is taken again at once: fetching all of it anew costs half a microsecond
# a row.
_LARGE_BYTES = 1 << 20
_KEPT_BYTES = 4 << 20


def return_freed_memory() -> None:
    """Return memory that Arrow frees to the system, if the C library has a setting for that."""
    # Arrow's own allocator keeps what a large transaction gave back: 460 instead of 375 MB.
    pa.set_memory_pool(pa.system_memory_pool())
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
