"""One step at the true chunk, to measure what memory it takes."""

from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.device import EngineDevice
from llm_engine.runner import StepRunner
from llm_engine.sequence import Chunk, Sequence

_SEQ_ID = -1


def measure_step(
    cache: SequenceCache, runner: StepRunner, device: EngineDevice, num_tokens: int
) -> int | None:
    """The memory that a chunk of `num_tokens` takes at its peak, beside its pages, in bytes.

    None where the system cannot tell, or where the pages are in use. Leaves no trace in the cache.
    """
    seq = Sequence(
        seq_id=_SEQ_ID,
        token_ids=[0] * num_tokens,
        num_prompt_tokens=num_tokens,
        max_total_tokens=num_tokens,
        has_run=True,
        wants_prompt_logits=True,
    )
    if not cache.admit(seq).is_admitted:
        return None
    if not cache.can_grow(_SEQ_ID, num_tokens):
        cache.release(seq)
        return None
    cache.grow(_SEQ_ID, num_tokens)
    seq.wants_prompt_logits = False
    chunk = Chunk(seq, 0, num_tokens, is_last=True)
    peak = device.peak_bytes(lambda: runner.run((chunk,)))
    cache.release(seq)
    if peak is None:
        return None
    return max(0, peak - cache.layout.most_bytes(num_tokens, num_tokens))
