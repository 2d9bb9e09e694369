"""Random numbers that are a function of seed, choice and position, and nothing else."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llm_engine.sampler import PositionUniforms


def _philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as in the paper, with Python's whole numbers."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        high, low = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (low >> 32) ^ c1 ^ k0,
            low & 0xFFFFFFFF,
            (high >> 32) ^ c3 ^ k1,
            high & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [c0, c1, c2, c3]


def test_the_papers_generator_has_its_known_answer() -> None:
    # Random123, kat_vectors: philox4x32 10, all counters and keys ff.
    assert _philox([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2) == [
        0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD,
    ]  # fmt: skip


@settings(deadline=None)
@given(st.integers(-(2**64) + 1, 2**64 - 1), st.integers(0, 127), st.integers(0, 100_000))
def test_a_number_is_the_papers_for_its_counter(seed: int, choice: int, position: int) -> None:
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    words = _philox([position, choice, 0, 0], key)
    uniforms = PositionUniforms(seed, choice)
    assert uniforms.drawing(position) == ((words[0] << 21) | (words[1] >> 11)) / 2**53
    assert uniforms.accepting(position) == ((words[2] << 21) | (words[3] >> 11)) / 2**53


def test_the_order_of_questions_changes_nothing() -> None:
    first, second = PositionUniforms(3, 1), PositionUniforms(3, 1)
    forwards = [first.drawing(i) for i in range(200)]
    order = list(range(200))
    random.Random(0).shuffle(order)
    assert {i: second.drawing(i) for i in order} == dict(enumerate(forwards))


def test_seeds_choices_positions_and_uses_are_unrelated() -> None:
    chosen = [PositionUniforms(s, c) for s, c in ((0, 0), (1, 0), (0, 1), (2**40, 0))]
    streams = [[uniforms.drawing(i) for i in range(2000)] for uniforms in chosen]
    streams.append([chosen[0].accepting(i) for i in range(2000)])
    for stream in streams:
        assert stats.kstest(stream, "uniform").pvalue > 0.001
    # Five standard deviations of a correlation of 2000 independent pairs.
    assert np.abs(np.corrcoef(streams) - np.eye(len(streams))).max() < 5 / 2000**0.5
