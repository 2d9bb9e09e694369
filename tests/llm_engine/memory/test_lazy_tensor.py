"""Memory that is taken when written and given back by rows."""

import re
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_engine.memory.lazy_tensor import LazyTensor

MIB = 1 << 20


def _resident_bytes() -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the figures come from /proc")
def test_memory_follows_what_is_written() -> None:
    start = _resident_bytes()
    lazy = LazyTensor((512, 512, 256), torch.float32)
    assert _resident_bytes() - start < 8 * MIB
    lazy.tensor[:128].fill_(1.0)
    written = _resident_bytes()
    assert written - start > 56 * MIB
    lazy.give_back(range(128))
    assert written - _resident_bytes() > 56 * MIB
    assert not lazy.tensor[:128].any()


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sets(st.integers(0, 19)),
    width=st.sampled_from([1, 700, 1024, 5000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_only_the_rows_given_back_are_zeroed(
    rows: set[int], width: int, dtype: torch.dtype
) -> None:
    lazy = LazyTensor((20, width), dtype)
    assert not lazy.tensor.any()
    lazy.tensor.fill_(3.0)
    lazy.give_back(rows)
    for row in range(20):
        assert (lazy.tensor[row] == (0.0 if row in rows else 3.0)).all()
