"""Whether a result is right, by the rule of the kernels' tests: at most twice torch's error.

`max|ours - ref64| ≤ 2 · max|torch - ref64| + 1e-6 · max|ref64|` for every floating output. Whole
numbers (chosen rows, packed bytes) may differ in as many places as twice torch's, and one in a
thousand beside, where two candidates are equal but for rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kernels.quantise import dequantise_rows
from kernels.spec import Case, OpSpec, load_entry

FLOOR = 1e-6
ALLOWED = 2.0
FLIPPED_SHARE = 1e-3
SEED = 7


def mapped(value: object, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:  # noqa: ANN401
    """`value` with every tensor in it changed, inside tuples, lists and dataclasses too."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(mapped(v, change) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: mapped(getattr(value, f.name), change) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def _doubled(value: object) -> Any:  # noqa: ANN401 - as nested as it came
    """Plain floating tensors in float64; what lies in dataclasses keeps its format."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() and value.itemsize > 1 else value
    if type(value) in (tuple, list):
        return type(value)(_doubled(v) for v in value)
    return value


def _outputs(result: object, quant: str) -> list[torch.Tensor]:
    """Output tensors; quantised ones are multiplied out."""
    outputs = list(result) if isinstance(result, tuple) else [result]
    if quant in ("fp8", "int8"):
        outputs[0] = dequantise_rows(outputs[0], outputs.pop(), quant)
    return [o for o in outputs if isinstance(o, torch.Tensor)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Arguments of a case on a device, what float64 makes of them, and plain torch's outputs."""

    args: tuple[Any, ...]
    options: dict[str, Any]
    exact: Sequence[torch.Tensor]
    plain: Sequence[torch.Tensor]

    @property
    def quant(self) -> str:
        """How the first output is quantised, or "none"."""
        return self.options.get("quant", "none")

    def error_ratio(self, result: object) -> float:
        """The worst output's error over torch's: right up to `ALLOWED`; inf for another shape."""
        outputs = _outputs(result, self.quant)
        if len(outputs) != len(self.exact):
            return float("inf")
        return max(map(_ratio, outputs, self.plain, self.exact), default=0.0)

    def first_error_ratio(self, result: object) -> float:
        """The same of the first output alone, in any shape: libraries return less and otherwise."""
        first = _outputs(result, "none")[0]
        if first.numel() != self.exact[0].numel():
            return float("inf")
        return _ratio(first.reshape(self.exact[0].shape), self.plain[0], self.exact[0])


def make_trial(spec: OpSpec, case: Case, device: torch.device) -> Trial:
    """Draw arguments on the CPU, the same on every device, and compute both references there."""
    args, options = load_entry(spec.example)(case, torch.Generator().manual_seed(SEED))
    args, options = (_moved(v, device) for v in (args, options))
    reference = load_entry(spec.reference)
    unquantised = {k: _doubled(v) for k, v in options.items() if k != "quant"}
    exact = _outputs(reference(*_doubled(args), **unquantised), "none")
    plain = _outputs(reference(*args, **options), options.get("quant", "none"))
    return Trial(args=args, options=options, exact=exact, plain=plain)


def _moved(value: object, device: torch.device) -> Any:  # noqa: ANN401 - as nested as it came
    if device.type == "cpu":
        return value
    if isinstance(value, dict):
        return {k: mapped(v, lambda t: _placed(t, device)) for k, v in value.items()}
    return mapped(value, lambda t: _placed(t, device))


def _placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device with the same strides, so that views stay views; what is expanded is filled."""
    if tensor.is_contiguous() or tensor.numel() == 0 or 0 in tensor.stride():
        return tensor.to(device)
    placed = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    return placed.copy_(tensor)


def _ratio(ours: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> float:
    if ours.shape != exact.shape:
        return float("inf")
    if exact.numel() == 0:
        return 0.0
    if not exact.is_floating_point():
        allowed = _differing(plain, exact) + FLIPPED_SHARE / ALLOWED
        return _differing(ours, exact) / allowed
    largest = torch.where(exact.isfinite(), exact.abs(), 0).max()
    allowed = _error(plain, exact) + FLOOR / ALLOWED * float(largest)
    error = _error(ours, exact)
    return error / allowed if allowed else (0.0 if error == 0 else float("inf"))


def _differing(values: torch.Tensor, exact: torch.Tensor) -> float:
    """Share of places that differ; rows of several choices are compared as sets."""
    values, exact = values.long(), exact.long()
    if exact.dim() > 1:
        values, exact = values.sort(-1).values, exact.sort(-1).values
    return float((values != exact).double().mean())


def _error(values: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest difference; equal infinities differ by nothing, a NaN by infinitely much."""
    difference = (values.double() - exact.double()).abs()
    difference = torch.where(values.double() == exact.double(), 0.0, difference)
    return float(torch.nan_to_num(difference, nan=float("inf"), posinf=float("inf")).max())
