"""Low-bit number formats of checkpoints: e4m3 in square blocks, mxfp4, ue8m0 scales.

`reference` decodes and encodes them in torch, `triton_kernel` decodes them with integer
operations, so that a family without a conversion instruction reads the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

# Weights by the names that cases use: "bf16" stands for the activations' own dtype.
FORMATS: Mapping[str, int] = {"bf16": 0, "fp8": 1, "mxfp4": 2}
