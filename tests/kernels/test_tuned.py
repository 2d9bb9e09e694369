"""Tuned tables: found by traits, guarded by measured times, refused when stale."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.dispatch import choose
from kernels.hardware.products import load_product, product_names
from kernels.hardware.traits import load_traits
from kernels.ledger import Rejection
from kernels.ops.registry import op_spec
from kernels.spec import Case
from kernels.tuned import (
    TunedTable,
    case_pattern,
    consider,
    load_table,
    running_versions,
    save_table,
)

DECODE = Case(
    dtype="bf16", sizes={"M": 16, "N": 1536, "K": 7168}, options={"block": "128x128", "x": "none"}
)
VERSIONS = {"torch": "2.13.0", "triton": "3.7.1"}


def a_table(family="sm_90", **versions):
    table = TunedTable(family=family, versions=VERSIONS, machine={"gpu": "H100"})
    tuned = consider(table, "block_fp8_gemm", DECODE, "triton_decoded", 2e-5, 1e-5)
    assert isinstance(tuned, TunedTable)
    return replace(tuned, versions=VERSIONS | versions)


def decided(table, *, case=DECODE, family="sm_90", spec=None):
    spec = spec or op_spec("block_fp8_gemm")
    return choose(spec, case, load_traits(family), tuned=table)


def test_an_unseen_product_of_the_family_finds_it_by_its_traits():
    known = next(p for p in map(load_product, product_names()) if p.family == "sm_90")
    unseen = replace(known, name="nvidia-h777-nvl", memory_bytes=known.memory_bytes * 2)
    decision = decided(a_table(), family=unseen.family)
    assert (decision.chosen, decision.source) == ("triton_decoded", "tuned")
    assert decision.reasons == (
        "measured 2.00 times the default on sm_90, bf16 K=4096 M=16 N=1024 block=128x128",
    )


def test_a_bucket_holds_its_neighbours_and_no_others():
    near = replace(DECODE, sizes={"K": 7000, "N": 2047, "M": 31}, options={"block": "128x128"})
    far = replace(DECODE, sizes=dict(DECODE.sizes) | {"M": 32})
    assert decided(a_table(), case=near).source == "tuned"
    assert decided(a_table(), case=far).source == "default"
    assert decided(a_table(), case=far).reasons == ()


@pytest.mark.parametrize(
    ("default_s", "choice_s"),
    [(1e-5, 2e-5), (1e-5, 1e-5), (1.01e-5, 1e-5), (float("nan"), 1e-5), (1e-5, 0.0)],
)
def test_what_is_not_measured_faster_is_rejected(default_s, choice_s):
    table = TunedTable(family="sm_90", versions=VERSIONS)
    found = consider(table, "block_fp8_gemm", DECODE, "triton_decoded", default_s, choice_s)
    assert isinstance(found, Rejection)
    assert found.candidate == "triton_decoded"
    assert "block_fp8_gemm" in found.reasons[0]


def test_a_worse_choice_does_not_replace_a_better_one_that_holds():
    table = a_table()
    assert isinstance(consider(table, "block_fp8_gemm", DECODE, "triton", 1.5, 1.0), Rejection)
    stale = replace(table, versions=VERSIONS | {"triton": "3.8.0"})
    renewed = consider(stale, "block_fp8_gemm", DECODE, "triton", 1.5, 1.0)
    assert [e.choice for e in renewed.entries] == ["triton"]
    assert decided(renewed).source == "tuned"


def test_a_stale_choice_is_refused_by_name():
    decision = decided(a_table(triton="3.8.0"))
    assert (decision.chosen, decision.source) == ("triton", "default")
    assert decision.reasons == (
        "tuned choice 'triton_decoded' ignored: measured with triton 3.7.1, here is 3.8.0",
    )


def test_another_familys_table_is_refused_by_name():
    decision = decided(a_table(), family="sm_120")
    assert decision.source == "default"
    assert "measured on sm_90" in decision.reasons[0]


def test_a_choice_that_is_gone_or_does_not_fit_falls_to_the_default():
    spec = op_spec("block_fp8_gemm")
    gone = replace(spec, implementations=(spec.find("triton"), spec.find("torch")))
    assert "has no such one" in decided(a_table(), spec=gone).reasons[0]
    wide = replace(DECODE, dtype="fp32")
    table = consider(a_table(), "block_fp8_gemm", wide, "triton_decoded", 2.0, 1.0)
    decision = decided(table, case=wide)
    assert (decision.chosen, decision.source, decision.reasons) == ("triton", "default", ())
    assert decision.rejected[0].candidate == "triton_decoded"


def test_a_table_survives_its_file(tmp_path):
    table = replace(a_table(), versions=running_versions())
    save_table(table, tmp_path)
    assert load_table("sm_90", tmp_path).entries == table.entries
    assert load_table("sm_80", tmp_path).entries == ()
    (tmp_path / "sm_86.json").write_text("[]")
    with pytest.raises(ValueError, match="sm_86"):
        load_table("sm_86", tmp_path)


@given(st.dictionaries(st.sampled_from("TDHK"), st.integers(0, 1 << 20), min_size=1))
def test_patterns_do_not_depend_on_order_nor_on_absent_options(sizes):
    case = Case(dtype="bf16", sizes=sizes, options={"quant": "none", "a": "yes"})
    turned = Case(dtype="bf16", sizes=dict(reversed(sizes.items())), options={"a": "yes"})
    assert case_pattern(case) == case_pattern(turned)
