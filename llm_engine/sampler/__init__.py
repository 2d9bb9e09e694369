"""Choosing the next token from the logits.

Order: repetition, presence and frequency penalties, logit bias, the constraint's mask, min_tokens;
then temperature, top_k, top_p, min_p; then one uniform number per token against the cumulated
probabilities. A row's result depends on that row alone, never on the rows beside it, and its
number on seed, choice and position alone: no state is kept from one token to the next.

All arithmetic is NumPy's, or torch's in pieces below its threshold for threads: rows are short,
and torch's threads keep spinning after an op, which disturbs whatever runs next.
"""

from llm_engine.sampler.history import TokenHistory
from llm_engine.sampler.rows import LogitBias, Sampled, Sampler, SamplerRow, Unsampled
from llm_engine.sampler.sample import sample
from llm_engine.sampler.scores import Score, score
from llm_engine.sampler.uniforms import PositionUniforms

__all__ = [
    "LogitBias",
    "PositionUniforms",
    "Sampled",
    "Sampler",
    "SamplerRow",
    "Score",
    "TokenHistory",
    "Unsampled",
    "sample",
    "score",
]
