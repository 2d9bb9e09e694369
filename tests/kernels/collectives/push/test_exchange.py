"""The push kernel between processes, in Triton's interpreter: every address is another's memory."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="Triton's interpreter is off (make test)"
)
SCRIPT = Path(__file__).parent / "push_ranks.py"
PATIENT = 10**7


@pytest.fixture
def crew(make_crew):
    """Ranks with small slots, so that short messages take several rounds."""

    def make(size, slot_bytes=1024, max_polls=PATIENT):
        return make_crew(size, SCRIPT, slot_bytes=slot_bytes, max_polls=max_polls).start()

    return make


@pytest.mark.slow
def test_sums_have_the_bits_of_the_reference(crew):
    ranks = crew(2)
    ranks.run("sums", dtype="bfloat16", counts=[1, 3001])
    for dtype in ("float16", "float32", "int64"):
        ranks.run("sums", dtype=dtype, counts=[65])
    ranks.run("sums", dtype="bfloat16", counts=[65], reduction="max")


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_add_in_the_same_order(crew, size):
    crew(size).run("sums", dtype="bfloat16", counts=[2, 1200])


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_parts_of_uneven_sizes_arrive(crew, size):
    ranks = crew(size)
    ranks.run("moves", dtype="bfloat16")
    ranks.run("moves", dtype="float32")


@pytest.mark.slow
def test_buffers_are_used_again_without_a_barrier(crew):
    ranks = crew(2, slot_bytes=512)
    states = ranks.run("epochs", num_calls=16, late_s=0.01)
    assert states[0] == states[1]
    assert states[0][0] == 0
    assert max(states[0]) > 16


@pytest.mark.slow
def test_every_registered_form_is_right(crew):
    coded = crew(2, slot_bytes=4096).run("registered", count=700)[0]
    assert coded == ["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_comes_is_named_by_all(crew, absent):
    told = crew(3, max_polls=1500).run("missing", absent=absent)
    for rank, answer in enumerate(told):
        if rank != absent:
            name, text, ranks = answer
            assert (name, ranks) == ("RankStalled", (absent,))
            assert f"gave rank {absent} up on rank {rank} after 1500 looks" in text
            assert "epoch 1" in text
