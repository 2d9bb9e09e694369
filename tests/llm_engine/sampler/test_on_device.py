"""Drawing by the op: each row by itself, in any company, and the rest by the processor."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from kernels.ops.registry import op_spec
from llm_engine.sampler import (
    PositionUniforms,
    Sampled,
    SamplerRow,
    TokenHistory,
    Unsampled,
    sample,
)
from llm_engine.sampler.on_device import DeviceSampler
from llm_engine.types import SamplingParams

V = 300


@pytest.fixture(scope="module")
def draw() -> DeviceSampler:
    return DeviceSampler(op_spec("sampler").find("torch").load())


def row(position: int = 0, seed: int = 5, choice: int = 0, **params: Any) -> SamplerRow:
    uniforms = PositionUniforms(seed, choice)
    return SamplerRow(
        params=SamplingParams(**params),
        uniform=uniforms.drawing(position),
        seed=uniforms.device_seed,
        position=position,
    )


def logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(num_rows, V, generator=torch.Generator().manual_seed(seed))


def ids(found: list[Sampled | Unsampled]) -> list[int]:
    return [item.token_id for item in found if isinstance(item, Sampled)]


def test_greedy_rows_take_the_likeliest(draw: DeviceSampler) -> None:
    x_SV = logits(4)
    assert ids(draw(x_SV, [row(temperature=0.0)] * 4)) == x_SV.argmax(-1).tolist()


def test_a_row_draws_the_same_in_any_company(draw: DeviceSampler) -> None:
    x_SV = logits(5)
    rows = [
        row(3, temperature=0.9),
        row(7, seed=-3, temperature=0.7, top_k=5),
        row(1, temperature=0.0),
        row(2, seed=2**63 - 1, temperature=1.3, top_p=0.5),
        row(2, choice=1, temperature=1.0, min_p=0.1),
    ]
    together = ids(draw(x_SV, rows))
    assert together == [ids(draw(x_SV[i : i + 1], [rows[i]]))[0] for i in range(5)]
    assert together == ids(draw(x_SV.flip(0), rows[::-1]))[::-1]


def test_draws_follow_the_distribution(draw: DeviceSampler) -> None:
    x_1V = torch.full((1, V), -20.0)
    x_1V[0, :4] = torch.tensor([0.5, 0.25, 0.15, 0.1]).log()
    num = 4000
    rows = [row(i, temperature=1.0) for i in range(num)]
    counts = Counter(ids(draw(x_1V.expand(num, V), rows)))
    expected = {0: 0.5, 1: 0.25, 2: 0.15, 3: 0.1}
    chi2 = sum((counts[t] - num * p) ** 2 / (num * p) for t, p in expected.items())
    assert sum(counts[t] for t in expected) == num
    assert chi2 < 16.3  # 3 degrees of freedom: 0.001


def test_choices_and_positions_have_numbers_of_their_own(draw: DeviceSampler) -> None:
    flat_SV = torch.zeros(64, V)
    by_position = ids(draw(flat_SV, [row(i, temperature=1.0) for i in range(64)]))
    by_choice = ids(draw(flat_SV, [row(choice=i, temperature=1.0) for i in range(64)]))
    assert len(set(by_position)) > 40
    assert len(set(by_choice)) > 40


def test_adjusted_rows_and_log_probabilities_are_the_processors(draw: DeviceSampler) -> None:
    x_SV = logits(3)
    history = TokenHistory(SamplingParams(presence_penalty=2.0), [1, 2, 3])
    rows = [
        SamplerRow(params=SamplingParams(temperature=0.8), uniform=0.3, history=history),
        row(temperature=0.0),
        SamplerRow(params=SamplingParams(temperature=0.8, logprobs=True), uniform=0.6),
    ]
    found = draw(x_SV, rows)
    alone = sample(x_SV[[0, 2]], [rows[0], rows[2]])
    assert [found[0], found[2]] == alone
    assert ids([found[1]]) == [int(x_SV[1].argmax())]


def test_a_damaged_row_has_no_token_and_harms_no_other(draw: DeviceSampler) -> None:
    x_SV = logits(3)
    x_SV[1, 7] = float("nan")
    found = draw(x_SV, [row(temperature=0.0), row(temperature=1.0), row(temperature=0.0)])
    assert found[1] is Unsampled.NOT_FINITE
    assert ids([found[0], found[2]]) == [int(x_SV[0].argmax()), int(x_SV[2].argmax())]
