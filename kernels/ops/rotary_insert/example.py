"""Random arguments of a case: q, k and v are views of one fused product."""

from __future__ import annotations

from typing import Any

import torch

from kernels.dtypes import TORCH_DTYPES
from kernels.ops.rotary_insert.arguments import HeadNorm, Insertion, Rotation
from kernels.spec import Case

NUM_POSITIONS = 40


def example(case: Case, generator: torch.Generator) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a case; the first token of several is not inserted.

    Interleaved partial rotations turn the last dimensions; K = 1 caches rows without values.
    """
    sizes, options, dtype = case.sizes, case.options, TORCH_DTYPES[case.dtype]
    num_tokens, num_kv = sizes["T"], sizes["K"]
    shape = (num_tokens, sizes["H"] + 2 * num_kv, sizes["D"])
    fused = torch.randn(shape, generator=generator).to(dtype)
    q_THD, k_TKD, v_TKD = fused.split((sizes["H"], num_kv, num_kv), dim=1)
    if num_kv == 0:
        return (q_THD, None), {"rotation": _rotation(case, generator)}
    keywords: dict[str, Any] = {"rotation": _rotation(case, generator)}
    if options.get("qk_norm") == "yes":
        weights = 1 + 0.2 * torch.randn(2, sizes["D"], generator=generator).to(dtype)
        keywords["norm"] = HeadNorm(q_weight=weights[0], k_weight=weights[1])
    if options.get("cache", "none") == "none":
        return (q_THD, k_TKD), keywords
    v = v_TKD if num_kv > 1 else None
    keywords["insertion"] = _insertion(case, generator)
    return (q_THD, k_TKD, v, _cache(case, 1 if v is None else 2)), keywords


def _rotation(case: Case, generator: torch.Generator) -> Rotation:
    sizes, style = case.sizes, case.options.get("style", "half")
    angles = torch.randn(NUM_POSITIONS, sizes["R"] // 2, generator=generator)
    return Rotation(
        cos=angles.cos(),
        sin=angles.sin(),
        positions=torch.randint(0, NUM_POSITIONS, (sizes["T"],), generator=generator),
        style=style,
        turns_last=style == "interleaved" and sizes["R"] < sizes["D"],
        is_inverse=case.options.get("inverse") == "yes",
    )


def _num_pages(case: Case) -> int:
    return case.sizes["T"] // case.sizes["page"] + 2


def _cache(case: Case, num_streams: int) -> torch.Tensor:
    sizes = case.sizes
    shape = (_num_pages(case), sizes["page"], num_streams, sizes["K"], sizes["D"])
    return torch.zeros(shape).to(TORCH_DTYPES[case.options["cache"]])


def _insertion(case: Case, generator: torch.Generator) -> Insertion:
    num_slots = _num_pages(case) * case.sizes["page"]
    slots_T = torch.randperm(num_slots, generator=generator)[: case.sizes["T"]]
    if len(slots_T) > 1:
        slots_T[0] = -1
    return Insertion(slots=slots_T, scale=0.05)
