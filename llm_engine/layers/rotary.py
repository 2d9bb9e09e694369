"""Rotary position embedding with linear, Llama 3 and yarn frequency scaling."""

# N tokens, H query heads, K key/value heads, X = H + K, D head dim, P pages, Z page size.

import math
from typing import Self

import torch

from kernels.ops.rotary_insert import Insertion, Rotation
from llm_engine.model_config import ModelConfig, RopeConfig

_LEAST_TABLE = 1024


class Rotary:
    """Rotation of head halves by position; angles in float32, then rounded to the model's dtype.

    Source: Su et al. 2021, arXiv:2104.09864; the two halves of a head form the pairs.
    """

    def __init__(
        self, frequencies: torch.Tensor, dtype: torch.dtype, attention_factor: float = 1.0
    ) -> None:
        """Keep the angles per position. Shapes: frequencies (D/2,)."""
        self._frequencies = frequencies
        self._attention_factor = attention_factor
        self._dtype = dtype
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        dtype: torch.dtype,
        frequency_divisors: torch.Tensor | None = None,
        *,
        place: torch.device | None = None,
    ) -> Self:
        """Build from a model's config; `frequency_divisors` (D/2,) are those a GGUF file stores.

        Angles are computed on `place`, the CPU without one.
        """
        frequencies = rotary_frequencies(config.rope, config.head_dim).to(place)
        if frequency_divisors is not None:
            frequencies = frequencies / frequency_divisors.float()
        return cls(frequencies, dtype, config.rope.attention_factor)

    @property
    def place(self) -> torch.device:
        """Where positions must be."""
        return self._frequencies.device

    def rotation(self, positions_N: torch.Tensor) -> Rotation:
        """The turn of a step's tokens, shared by all layers. Shapes: positions (N,)."""
        cos_NR, sin_NR = self._turns(positions_N)
        return Rotation(cos=cos_NR, sin=sin_NR).for_step(positions_N.shape[0], self._dtype)

    def table(self, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of at least the first positions, float32 (P, D/2); kept and grown."""
        if self._table is None or self._table[0].shape[0] < num_positions:
            rounded = 1 << (num_positions - 1).bit_length()
            self._table = self._turns(torch.arange(max(rounded, _LEAST_TABLE), device=self.place))
        return self._table

    def _turns(self, positions_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines (N, D/2), with the factor that yarn applies to both."""
        angles_NR = torch.outer(positions_N.float(), self._frequencies)
        cos_NR, sin_NR = angles_NR.cos(), angles_NR.sin()
        if self._attention_factor != 1.0:
            return cos_NR * self._attention_factor, sin_NR * self._attention_factor
        return cos_NR, sin_NR


def turn_and_insert(
    q_NHD: torch.Tensor,
    k_NKD: torch.Tensor,
    v_NKD: torch.Tensor,
    cache_PZ2KD: torch.Tensor,
    *,
    rotation: Rotation,
    insertion: Insertion,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    """As `kernels.ops.rotary_insert` for what the engine's models make, and nothing else.

    Keys follow the queries in one product, `rotation` is that of a step, every slot is valid.
    """
    num_tokens, num_heads, head_dim = q_NHD.shape
    first = q_NHD.storage_offset()
    assert k_NKD.storage_offset() == first + num_heads * head_dim, "keys do not follow queries"
    shape = (num_tokens, num_heads + k_NKD.shape[1], head_dim)
    heads_NXD = q_NHD.as_strided(shape, q_NHD.stride(), first)
    cos_N1D, sin_N1D = rotation.spread
    swapped_NXD = heads_NXD.roll(head_dim // 2, dims=-1)
    turned_NXD = torch.addcmul(heads_NXD * cos_N1D, swapped_NXD, sin_N1D)
    kv_N2KD = torch.stack((turned_NXD[:, num_heads:], v_NKD), dim=1)
    cache_PZ2KD.flatten(0, 1).index_copy_(0, insertion.slots, kv_N2KD)
    return turned_NXD[:, :num_heads], None, cache_PZ2KD


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Angles per position, (D/2,) float32: theta^(-2i/D), stretched as `rope` says.

    llama3: wavelengths above original/low are stretched by `factor`, those below original/high
    are kept, and those between are blended. yarn: pairs that turn more than `beta_fast` times
    within the original context are kept, those below `beta_slow` are stretched, by a linear ramp.
    Source: Llama 3.1 release, section on RoPE scaling; Peng et al. 2023, arXiv:2309.00071.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / rope.theta**exponents
    if rope.rope_type in ("default", "dynamic"):
        return frequencies
    if rope.rope_type == "linear":
        return frequencies / rope.factor
    if rope.rope_type == "yarn":
        stretched = _yarn_ramp(rope, head_dim)
        return frequencies / rope.factor * stretched + frequencies * (1 - stretched)
    wavelengths = 2 * math.pi / frequencies
    low, high = rope.low_freq_factor, rope.high_freq_factor
    share_kept = (rope.original_max_position / wavelengths - low) / (high - low)
    share_kept = share_kept.clamp(0.0, 1.0)
    return (1 - share_kept) * frequencies / rope.factor + share_kept * frequencies


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """How much of each pair is stretched, (D/2,) from 0 to 1."""

    def pair_of(turns: float) -> float:
        """The pair, as a real number, that turns so often within the original context."""
        wavelength = rope.original_max_position / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(rope.theta))

    first, last = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.is_truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    last = last + 0.001 if first == last else last
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    return ((pairs - first) / (last - first)).clamp(0.0, 1.0)
