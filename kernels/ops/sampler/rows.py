"""What each row of a batch asks of the sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How the rows draw. Shapes: all (B).

    temperature float32, 0 for the likeliest token; top_k int32, 0 for all; top_p and min_p
    float32, 1 and 0 for all; seed and counter int64: the key of a row's random numbers and the
    number of its draw. Missing top_k, top_p, min_p: all tokens.
    """

    temperature: torch.Tensor
    seed: torch.Tensor
    counter: torch.Tensor
    top_k: torch.Tensor | None = None
    top_p: torch.Tensor | None = None
    min_p: torch.Tensor | None = None

    @property
    def has_top(self) -> bool:
        """Whether any row may leave out tokens."""
        return any(x is not None for x in (self.top_k, self.top_p, self.min_p))

    def take(self, index_N: torch.Tensor) -> Draws:
        """The rows of an index, in its order."""

        def rows(value: torch.Tensor | None) -> torch.Tensor | None:
            return None if value is None else value[index_N]

        return Draws(
            temperature=self.temperature[index_N],
            seed=self.seed[index_N],
            counter=self.counter[index_N],
            top_k=rows(self.top_k),
            top_p=rows(self.top_p),
            min_p=rows(self.min_p),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Penalties of tokens that occurred. Shapes: (B) float32; prompt (B, V) bool, counts (B, V).

    `repetition` divides positive and multiplies negative logits of tokens of the prompt or the
    answer; `presence` is taken off once and `frequency` once an occurrence, both for the answer
    alone. `counts` int32 counts the answer's tokens.
    """

    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    prompt: torch.Tensor
    counts: torch.Tensor


def check_rows(
    draws: Draws, penalties: Penalties | None, bias_BV: torch.Tensor | None, shape: tuple[int, int]
) -> None:
    """Refuse rows that do not fit logits of `shape`.

    Raises:
        ShapeError: names the tensor, its shape and the shape it must have.
    """
    from kernels.checks import check_shape

    sizes = {"B": shape[0], "V": shape[1]}
    for name in ("temperature", "seed", "counter", "top_k", "top_p", "min_p"):
        value = getattr(draws, name)
        if value is not None:
            check_shape(value, "B", sizes, name=name)
    if penalties is not None:
        for name in ("repetition", "presence", "frequency"):
            check_shape(getattr(penalties, name), "B", sizes, name=name)
        check_shape(penalties.prompt, "B V", sizes, name="prompt")
        check_shape(penalties.counts, "B V", sizes, name="counts")
    if bias_BV is not None:
        check_shape(bias_BV, "B V", sizes, name="bias")
