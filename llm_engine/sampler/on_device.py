"""Drawing where the logits are: token ids alone come back from a device."""

# S rows, R rows of one kind, V vocabulary.

from collections.abc import Callable, Sequence

import torch

from kernels.ops.sampler import Draws
from llm_engine.device import upload
from llm_engine.sampler.rows import Sampled, SamplerRow, Unsampled
from llm_engine.sampler.sample import sample

# As `kernels.ops.sampler`: logits, draws, penalties, bias -> tokens (R,) and log probabilities.
SamplerOp = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class DeviceSampler:
    """One token per row, as `llm_engine.sampler.sample`, by an op that draws on the device.

    Rows whose logits are adjusted first, or whose log probabilities are wanted, are copied and
    drawn by the processor. Both ways a row's token is a function of its logits, its seed and its
    position, whatever stands beside it.
    """

    def __init__(self, op: SamplerOp) -> None:
        """Keep the op that was chosen."""
        self._op = op

    def __call__(
        self, logits_SV: torch.Tensor, rows: Sequence[SamplerRow]
    ) -> list[Sampled | Unsampled]:
        """See `llm_engine.sampler.sample`. Shapes: logits (S, V), float32."""
        drawn = [i for i, row in enumerate(rows) if row.is_plain]
        copied = [i for i, row in enumerate(rows) if not row.is_plain]
        found: dict[int, Sampled | Unsampled] = {}
        if drawn:
            tokens = self._draw(_rows(logits_SV, drawn), [rows[i] for i in drawn])
            found.update(zip(drawn, tokens, strict=True))
        if copied:
            tokens = sample(_rows(logits_SV, copied).to("cpu"), [rows[i] for i in copied])
            found.update(zip(copied, tokens, strict=True))
        return [found[i] for i in range(len(rows))]

    def _draw(
        self, logits_RV: torch.Tensor, rows: Sequence[SamplerRow]
    ) -> list[Sampled | Unsampled]:
        tokens_R, _ = self._op(logits_RV, _draws(rows, logits_RV.device), None, None)
        return [
            Unsampled.NOT_FINITE if token_id < 0 else Sampled(token_id, None, ())
            for token_id in tokens_R.to("cpu").tolist()
        ]


def _rows(logits_SV: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
    if len(wanted) == len(logits_SV):
        return logits_SV
    return logits_SV.index_select(0, upload(wanted, torch.int64, logits_SV.device))


def _draws(rows: Sequence[SamplerRow], place: torch.device) -> Draws:
    """What the rows ask for; bounds that no row has are left out."""

    def bound(values: list[float], none: float, dtype: torch.dtype) -> torch.Tensor | None:
        return upload(values, dtype, place) if any(value != none for value in values) else None

    params = [row.params for row in rows]
    return Draws(
        temperature=upload([p.temperature for p in params], torch.float32, place),
        seed=upload([row.seed for row in rows], torch.int64, place),
        counter=upload([row.position for row in rows], torch.int64, place),
        top_k=bound([p.top_k for p in params], 0, torch.int32),
        top_p=bound([p.top_p for p in params], 1.0, torch.float32),
        min_p=bound([p.min_p for p in params], 0.0, torch.float32),
    )
