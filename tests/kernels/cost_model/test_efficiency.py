"""The table of efficiencies: whole for every product, sourced shares as their sources say."""

import pytest

from kernels.cost_model.efficiency import (
    TABLE,
    WORK,
    Efficiency,
    MalformedEfficiency,
    efficiencies_of,
    sparse_heads_of,
)
from kernels.cost_model.rates import product_rates
from kernels.hardware.products import load_product, product_names

PRO_6000 = load_product("rtx-pro-6000")
PEAK = 503.8e12
# FlashInfer #3834: heads, queries, seconds of attention over 256 rows of 512 values each.
SPARSE = [(32, 4096, 910.6e-6), (128, 4096, 4330.8e-6)]


@pytest.mark.parametrize("name", product_names())
def test_every_product_has_every_share_with_its_source(name):
    product = load_product(name)
    found = efficiencies_of(product)
    assert set(found) == set(WORK)
    rates = product_rates(product, has_fp8_math=True)
    told = len(rates.sourced)
    assert told == sum(not entry.is_assumed for entry in found.values())
    assert any("efficiencies" in text for text in rates.assumed) == (told < len(WORK))


def test_shares_of_the_pro_6000_lie_where_their_sources_measured():
    found = efficiencies_of(PRO_6000)
    assert found["dense"].share + 0.005 >= 350e12 / PEAK
    assert found["dense"].share <= 417e12 / PEAK
    measured = [heads * queries * 256 * 2 * (512 + 512) / s / PEAK for heads, queries, s in SPARSE]
    assert min(measured) <= found["sparse"].share <= max(measured)
    assert found["indexer"].share == pytest.approx(776 / 2015, abs=0.01)


def test_scores_of_fp8_keys_run_at_the_fp8_peak_where_fp8_is_multiplied():
    with_fp8 = product_rates(PRO_6000, has_fp8_math=True)
    without = product_rates(PRO_6000, has_fp8_math=False)
    assert with_fp8.fp8_indexer_flops_s == pytest.approx(2 * with_fp8.indexer_flops_s)
    assert without.fp8_indexer_flops_s == without.indexer_flops_s == with_fp8.indexer_flops_s
    a100 = product_rates(load_product("a100-pcie-80gb"), has_fp8_math=True)
    assert a100.fp8_indexer_flops_s == a100.indexer_flops_s, "no fp8 units"


@pytest.mark.parametrize(
    ("work", "share", "source", "words"),
    [
        ("dense", 0.0, "assumed", "above 0"),
        ("dense", 1.1, "assumed", "at most 1"),
        ("dense", 0.5, " ", "source"),
        ("dancing", 0.5, "assumed", "none of dense"),
    ],
)
def test_a_share_out_of_bounds_is_refused(work, share, source, words):
    with pytest.raises(MalformedEfficiency, match=words):
        Efficiency(work=work, share=share, source=source)


def test_a_table_without_a_share_is_refused_by_its_name(tmp_path):
    lines = [x for x in TABLE.read_text().splitlines() if not x.startswith("memory")]
    (tmp_path / "e.toml").write_text("\n".join(lines))
    with pytest.raises(MalformedEfficiency, match="rtx-pro-6000: no share for memory"):
        efficiencies_of(PRO_6000, tmp_path / "e.toml")


def test_the_heads_that_a_kernel_pads_to_are_the_products_own():
    """FlashMLA computes 64 heads whatever a rank has; a tile's 16 are the least elsewhere."""
    assert sparse_heads_of(load_product("h200-sxm")) == 64
    assert {sparse_heads_of(load_product(n)) for n in product_names()} == {16, 64}
    assert product_rates(load_product("h200-sxm"), has_fp8_math=True).sparse_heads == 64
