"""Commands come back from bytes as they were, and nothing else passes for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_engine.layers.paged_rows import AttentionSpan
from llm_engine.parallel.step_command import PHASES, BrokenCommand, PageMove, StepCommand

small = st.integers(0, (1 << 31) - 1)
numbers = st.lists(small, max_size=9).map(tuple)
commands = st.builds(
    StepCommand,
    sequence=st.integers(0, (1 << 64) - 1),
    phase=st.sampled_from(PHASES),
    token_ids=numbers,
    spans=st.lists(st.builds(AttentionSpan, small, small, numbers), max_size=4).map(tuple),
    logit_rows=numbers,
    moves=st.lists(
        st.builds(
            PageMove,
            st.sampled_from(("save", "load", "drop", "copy", "give_back")),
            numbers,
            small,
            small,
        ),
        max_size=3,
    ).map(tuple),
    part_rows=numbers,
    adapters=numbers,
)


@given(commands)
def test_read_back(command: StepCommand) -> None:
    assert StepCommand.decode(command.encode()) == command
    assert StepCommand.decode(memoryview(command.encode())) == command


@given(commands, st.data())
def test_cut_bytes_are_refused(command: StepCommand, data: st.DataObject) -> None:
    encoded = command.encode()
    length = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(BrokenCommand):
        StepCommand.decode(encoded[:length])


def test_other_bytes_are_refused() -> None:
    command = StepCommand(sequence=1, phase="decode", token_ids=(), spans=(), logit_rows=())
    with pytest.raises(BrokenCommand, match="begins with"):
        StepCommand.decode(b"HTTP" + command.encode()[4:])
    with pytest.raises(BrokenCommand, match="left over"):
        StepCommand.decode(command.encode() + bytes(4))
