"""The rule for guesses drawn at random: the token kept follows the target's distribution."""

# V vocabulary.

from dataclasses import dataclass

import numpy as np

from llm_engine.sampler.arrays import Doubles


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the draft was kept, and the token that stands in its place either way."""

    is_accepted: bool
    token_id: int


def accept_or_replace(
    draft_id: int,
    draft_probs_V: Doubles,
    target_probs_V: Doubles,
    *,
    accepting: float,
    drawing: float,
) -> Verdict:
    """Keep a draft x ~ q with probability min(1, p(x) / q(x)), else draw from max(0, p - q).

    The token then follows p, whatever q is. `accepting` and `drawing` are two independent uniform
    numbers in [0, 1) that the draft does not depend on.

    Shapes: both (V), float64, each adding up to 1, after temperature and cuts.
    Source: Leviathan et al. 2022, arXiv:2211.17192, section 2.3; Chen et al. 2023,
    arXiv:2302.01318, algorithm 2.
    """
    if accepting * draft_probs_V[draft_id] < target_probs_V[draft_id]:
        return Verdict(is_accepted=True, token_id=draft_id)
    residual_V = np.maximum(target_probs_V - draft_probs_V, 0.0)
    cumulated_V = residual_V.cumsum()
    token_id = int((cumulated_V <= drawing * cumulated_V[-1]).sum())
    return Verdict(is_accepted=False, token_id=token_id)
