"""What the headers of a model's files say of its weights, before one is read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredForm:
    """What the files hold in small floats that products of a device can take as they are.

    `fp8_block` is the side of the blocks of matrices in e4m3, None where no matrix is; `experts`
    the format that all experts' maps have, as `kernels.ops.moe_gemm` names it: "fp8", "mxfp4", or
    "bf16" for any other.
    """

    fp8_block: int | None = None
    experts: str = "bf16"


IN_NUMBERS = StoredForm()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFacts:
    """Memory that the weights of a checkpoint will take, known before one is read.

    Estimates, in bytes: all matrices in the engine's dtype, or those that the file quantises kept
    in that form; what is saved where matrices outside the experts, or the experts, stay in the
    small floats of `stored`. In bfloat16 on a CPU a tied head counts once more, since it gets a
    layout of its own.
    `is_quantised` says that every linear map of the layers has a packed form.
    """

    unpacked_bytes: int
    packed_bytes: int
    is_quantised: bool
    stored: StoredForm = IN_NUMBERS
    fp8_saved_bytes: int = 0
    experts_saved_bytes: int = 0
