"""Random guesses: whatever they are drawn from, what is kept follows the target."""

import numpy as np
import pytest
from scipy import stats

from llm_engine.sampler import PositionUniforms
from llm_engine.speculation.rejection import accept_or_replace

NUM = 20000


@pytest.mark.parametrize("seed", range(5))
def test_kept_tokens_follow_the_target(seed: int) -> None:
    generator = np.random.default_rng(seed)
    target, draft = generator.dirichlet(np.full(8, 0.7), size=2)
    target[3] = 0.0
    target /= target.sum()
    guesses = generator.choice(8, size=NUM, p=draft)
    uniforms = PositionUniforms(seed, 0)
    verdicts = [
        accept_or_replace(
            int(guess),
            draft,
            target,
            accepting=uniforms.accepting(i),
            drawing=uniforms.drawing(i),
        )
        for i, guess in enumerate(guesses)
    ]
    counts = np.bincount([v.token_id for v in verdicts], minlength=8)
    possible = target > 0
    assert not counts[~possible].any()
    assert stats.chisquare(counts[possible], NUM * target[possible]).pvalue > 0.001
    # A guess is kept with probability sum(min(p, q)).
    share = np.minimum(target, draft).sum()
    num_kept = sum(v.is_accepted for v in verdicts)
    assert stats.binomtest(num_kept, NUM, share).pvalue > 0.001


def test_a_perfect_drafter_is_never_refused() -> None:
    probs = np.array([0.5, 0.25, 0.25])
    for token in range(3):
        verdict = accept_or_replace(token, probs, probs, accepting=1 - 2.0**-53, drawing=0.0)
        assert verdict.is_accepted
        assert verdict.token_id == token
