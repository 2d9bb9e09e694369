"""Work that keeps up with a message acts on every element once, however the message comes."""

from hypothesis import given
from hypothesis import strategies as st

from kernels.collectives.link import Following


@given(
    length=st.integers(0, 200_000),
    told=st.lists(st.floats(0, 1), max_size=20).map(sorted),
)
def test_every_element_is_acted_on_once_and_in_order(length, told):
    pieces = []
    following = Following(lambda begin, end: pieces.append((begin, end)), length)
    for share in [*told, 1, 1]:
        following.upto(int(share * length))
    ends = [0, *(end for _, end in pieces)]
    assert [begin for begin, _ in pieces] == ends[:-1]
    assert ends[-1] == length
    assert all(begin < end for begin, end in pieces)
