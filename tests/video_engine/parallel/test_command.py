"""Commands and their tensors: what is packed on one rank is what the others unpack."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from video_engine.parallel.command import ForwardCommand

_DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32,
    torch.uint8, torch.bool,
)  # fmt: skip


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=4))
    found = {}
    for name in names:
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        dtype = draw(st.sampled_from(_DTYPES))
        found[name] = (torch.randn(shape) * 9).to(dtype)
    return found


@settings(deadline=None)
@given(inputs(), st.lists(inputs(), min_size=1, max_size=2))
def test_packed_and_unpacked(
    shared: dict[str, torch.Tensor], branches: list[dict[str, torch.Tensor]]
) -> None:
    command = ForwardCommand.of("transformer_2", shared, branches)
    again = ForwardCommand.decode(command.encode())
    assert again == command
    message = command.packed(shared, branches, torch.device("cpu"))
    assert len(message) == again.size_bytes
    found = again.unpacked(message)
    for expected, got in zip((shared, *branches), (found[0], *found[1]), strict=True):
        assert list(got) == list(expected)
        for name, x in expected.items():
            assert got[name].dtype == x.dtype
            assert torch.equal(got[name], x)


def test_strided_tensors_travel_by_value() -> None:
    x = torch.arange(24).view(2, 3, 4).transpose(0, 2)
    command = ForwardCommand.of("t", {"x": x}, [{}])
    shared, branches = command.unpacked(command.packed({"x": x}, [{}], torch.device("cpu")))
    assert torch.equal(shared["x"], x)
    assert branches == [{}]
