"""The limits of our engine: by what it says it is bound to."""

import pytest

from benchmarks.limits import Limits
from benchmarks.llm.bounds import bounds_of
from benchmarks.llm.model_facts import ModelFacts
from benchmarks.llm.process import EngineFailed

MODEL = ModelFacts(weight_bytes=100, linear_flops=10.0, attention_flops=0.0, vocabulary=())
PACKED = {"dtype": "float32", "kernels": [["packed_gemm", "native", "fused"]]}
PLAIN = {"dtype": "float32", "kernels": [["gemm", "torch", "vendor"]]}


def limits(**rates):
    return Limits(copy_bytes_s=1.0, read_bytes_s=5000.0, gemm_flop_s=rates)


def test_decode_is_bound_by_reading_the_weights():
    assert bounds_of(MODEL, limits(fp32=1e3), PLAIN).decode_tok_s() == 50.0


@pytest.mark.parametrize(
    ("facts", "int8", "tok_s"), [(PLAIN, 4e3, 100.0), (PACKED, 4e3, 400.0), (PACKED, 5e2, 100.0)]
)
def test_prefill_is_bound_by_the_fastest_product_that_the_path_may_use(facts, int8, tok_s):
    bounds = bounds_of(MODEL, limits(fp32=1e3, int8=int8), facts)
    assert bounds.prefill_tok_s(64) == pytest.approx(tok_s)
    assert bounds.prefill_by_dtype(64) == {
        "fp32": pytest.approx(100.0),
        "int8": pytest.approx(int8 / 10),
    }


def test_a_dtype_that_was_not_measured_is_named():
    with pytest.raises(EngineFailed, match="bf16"):
        bounds_of(MODEL, limits(fp32=1e3), PLAIN | {"dtype": "bfloat16"})
