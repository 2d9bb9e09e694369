"""The most memory that the process held while something ran."""

import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def peak_bytes(run: Callable[[], object]) -> int | None:
    """What `run` added at its peak to what the process held before; None where it is not known.

    Linux keeps a high-water mark that can be reset. Elsewhere the mark only rises, so that an
    earlier, larger peak hides this one: then nothing is claimed.
    """
    if not _reset_peak():
        before = _lifetime_peak_bytes()
        run()
        grown = _lifetime_peak_bytes() - before
        return grown or None
    before = _status_bytes("VmRSS")
    run()
    peak = _status_bytes("VmHWM")
    if before is None or peak is None:
        return None
    return max(0, peak - before)


def _reset_peak() -> bool:
    try:
        _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def _status_bytes(name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found.group(1)) * 1024 if found else None


def _lifetime_peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
