"""Commands of a step hold every chunk once, by phase, within the slots of the stages."""

from hypothesis import given
from hypothesis import strategies as st

from llm_engine.parallel.layout import PhaseLayouts
from llm_engine.parallel.step_division import StepDivision
from llm_engine.sequence import Chunk, Sequence

PAGE, CONTEXT = 4, 30


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    start = draw(st.integers(0, CONTEXT - 2))
    num_drafts = draw(st.integers(0, 2))
    most = CONTEXT - start - num_drafts
    num_tokens = draw(st.integers(1, max(1, most))) + num_drafts
    seq = Sequence(0, [0] * CONTEXT, 1, CONTEXT)
    return Chunk(seq, start, num_tokens, True, num_drafts)


steps = st.lists(chunks(), max_size=8)


@given(steps)
def test_stages_get_prompts_alone(step: list[Chunk]) -> None:
    division = StepDivision.of(PhaseLayouts.parse("pp2->tp2"), CONTEXT, PAGE)
    parts = division.parts(step, lambda _: 0)
    assert sorted(i for part in parts for i in part.chunks) == list(range(len(step)))
    assert [part.phase for part in parts].count("decode") == (
        1 if not step or any(c.num_tokens - c.num_drafts == 1 for c in step) else 0
    )
    for part in parts:
        assert list(part.chunks) == sorted(part.chunks)
        known = [step[i].num_tokens - step[i].num_drafts for i in part.chunks]
        assert all((length > 1) == (part.phase == "prefill") for length in known)
        if part.phase == "prefill":
            assert sum(-(-step[i].end // PAGE) for i in part.chunks) <= -(-CONTEXT // PAGE)


@given(steps)
def test_phases_of_one_cache_share_a_command(step: list[Chunk]) -> None:
    division = StepDivision.of(PhaseLayouts.parse("cp2->tp2"), CONTEXT, PAGE)
    (part,) = division.parts(step, lambda _: 0)
    assert part.chunks == tuple(range(len(step)))
    has_prompt = any(chunk.num_tokens - chunk.num_drafts > 1 for chunk in step)
    assert part.phase == ("prefill" if has_prompt else "decode")


@given(steps)
def test_chunks_of_one_part_follow_one_another(step: list[Chunk]) -> None:
    for number, chunk in enumerate(step):
        chunk.seq.seq_id = number
    division = StepDivision.of(PhaseLayouts.parse("dp3,ep3"), CONTEXT, PAGE)
    (part,) = division.parts(step, lambda number: number % 3)
    assert sorted(part.chunks) == list(range(len(step)))
    # By part, and within it in the order of the step.
    assert list(part.chunks) == sorted(part.chunks, key=lambda i: (i % 3, i))
    rows = [sum(step[i].num_tokens for i in part.chunks if i % 3 == k) for k in range(3)]
    assert list(part.part_rows) == rows
