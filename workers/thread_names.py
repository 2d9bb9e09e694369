"""Names for threads that the operating system's own tools show (`top -H`, /proc)."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

_MAX_BYTES = 15


def name_this_thread(name: str) -> None:
    """Show this thread as `name`, cut to 15 bytes; a label, which only Linux takes."""
    if sys.platform == "linux":
        comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
        comm.write_bytes(name.encode()[:_MAX_BYTES])
