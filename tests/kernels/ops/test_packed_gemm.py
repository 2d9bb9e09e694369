"""The packed product: its stated error bound, rows independent of each other, its layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import ImplUnavailable, ShapeError
from kernels.native.build import OPTIONS, BuildSettings, find_compiler
from kernels.native.library import Library, Pool, library, pool
from kernels.ops.packed_gemm import packed_gemm
from kernels.ops.packed_gemm.native import multiply
from kernels.ops.packed_gemm.quantised import PANEL_ROWS, PackedMatrix, QuantisedMatrix
from kernels.ops.packed_gemm.reference import packed_gemm as reference
from kernels.ops.packed_gemm.reference import random_matrix

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler here")

FORMS = st.fixed_dictionaries(
    {
        "bits_group": st.sampled_from([("4", "32"), ("8", "32"), ("8", "16")]),
        "minima": st.sampled_from(["yes", "none"]),
        "wide": st.sampled_from(["yes", "none"]),
    }
)
SHAPES = st.tuples(st.integers(1, 90), st.integers(1, 70), st.integers(1, 9))


def build(form: dict, num_rows: int, num_groups: int, seed: int) -> QuantisedMatrix:
    generator = torch.Generator().manual_seed(seed)
    bits, group = form["bits_group"]
    options = {"bits": bits, "group": group, "minima": form["minima"], "wide": form["wide"]}
    return random_matrix(num_rows, int(group) * num_groups, generator, **options)


def rows_of(num_rows: int, num_columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.tensor([0.0, 1e-6, 1.0, 300.0])[torch.arange(num_rows) % 4]
    return torch.randn(num_rows, num_columns, generator=generator) * scales[:, None]


@settings(max_examples=40, deadline=None)
@given(FORMS, SHAPES, st.integers(0, 1000))
def test_the_error_is_within_the_stated_bound(form, shape, seed) -> None:
    num_x, num_rows, num_groups = shape
    matrix = build(form, num_rows, num_groups, seed)
    x_MK = rows_of(num_x, matrix.quants_NK.shape[1], seed)
    exact = reference(x_MK.double(), matrix)
    groups = x_MK.double().unflatten(1, (num_groups, -1))
    limit = 127 if matrix.bits == 4 else 32767
    half_step_MG = groups.abs().amax(-1) / limit / 2
    weights = matrix.dequantised(torch.float64).abs()
    bound_MN = half_step_MG @ weights.unflatten(1, (num_groups, -1)).sum(-1).T
    # Scales and minima are multiplied and added apart, so their own sizes bound float32's rounding.
    quants = matrix.quants_NK.double().abs().unflatten(1, (num_groups, -1))
    parts = quants * matrix.scales_NG.double()[..., None]
    if matrix.minima_NG is not None:
        parts = parts + matrix.minima_NG.double().abs()[..., None]
    sizes_MN = x_MK.double().abs() @ parts.flatten(1).T
    rounding = (num_groups + 40) * torch.finfo(torch.float32).eps * sizes_MN
    ours = packed_gemm(x_MK, matrix, impl="native")
    assert ((ours - exact).abs() <= bound_MN + rounding + 1e-30).all()


@settings(max_examples=25, deadline=None)
@given(FORMS, SHAPES, st.integers(0, 1000))
def test_a_row_does_not_depend_on_the_others(form, shape, seed) -> None:
    num_x, num_rows, num_groups = shape
    packed = PackedMatrix(build(form, num_rows, num_groups, seed), None, pool(1))
    x_MK = rows_of(num_x, packed.num_columns, seed)
    together = multiply(x_MK, packed, pool(2))
    for row in {0, num_x // 2, num_x - 1}:
        assert torch.equal(multiply(x_MK[row : row + 1], packed, pool(1))[0], together[row])


@settings(max_examples=25, deadline=None)
@given(FORMS, st.integers(1, 40), st.integers(1, 5), st.integers(0, 1000))
def test_rows_come_out_as_they_went_in(form, num_rows, num_groups, seed) -> None:
    matrix = build(form, num_rows, num_groups, seed)
    packed = PackedMatrix(matrix, None, pool(1))
    ids = torch.arange(num_rows).flip(0)
    assert torch.equal(packed.rows(ids), matrix.dequantised(torch.float32)[ids])


@settings(max_examples=30, deadline=None)
@given(FORMS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 40), st.integers(0, 1000))
def test_a_part_is_the_matrix_of_its_rows_and_columns(form, row_cut, groups, num_x, seed) -> None:
    """Bit for bit, in the memory of the whole; a part of a part too."""
    matrix = build(form, 70, 6, seed)
    bias_N = torch.randn(70, generator=torch.Generator().manual_seed(seed))
    whole, threads = PackedMatrix(matrix, bias_N, pool(1)), pool(1)
    rows = range(PANEL_ROWS * (row_cut - 1), min(70, PANEL_ROWS * row_cut + 5))
    columns = range(matrix.group, matrix.group * (1 + groups))
    cut = QuantisedMatrix(
        matrix.quants_NK[rows.start : rows.stop, columns.start : columns.stop],
        matrix.scales_NG[rows.start : rows.stop, 1 : 1 + groups],
        None
        if matrix.minima_NG is None
        else matrix.minima_NG[rows.start : rows.stop, 1 : 1 + groups],
        matrix.bits,
        matrix.group,
    )
    x_MK = rows_of(num_x, len(columns), seed)
    # Scales that are all exact in float16 are kept so, which a part cannot know of the whole.
    expected = PackedMatrix(cut, bias_N[rows.start : rows.stop], threads)
    wide = whole.part(range(rows.start, 70), range(matrix.group, 6 * matrix.group))
    parts = [
        whole.part(rows, columns),
        wide.part(range(len(rows)), range(len(columns))),
    ]
    for part in parts:
        assert torch.equal(multiply(x_MK, part, threads), multiply(x_MK, expected, threads))
        ids = torch.arange(len(rows))
        assert torch.equal(part.rows(ids), cut.dequantised(torch.float32))
        assert part.num_bytes == 0
    plain = whole.part(rows, columns, has_bias=False)
    unbiased = PackedMatrix(cut, None, threads)
    assert torch.equal(multiply(x_MK, plain, threads), multiply(x_MK, unbiased, threads))


@pytest.mark.parametrize(
    ("rows", "columns"), [((3, 20), (0, 64)), ((0, 8), (16, 64)), ((0, 8), (0, 40))]
)
def test_parts_begin_with_panels_and_groups(
    rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    whole = PackedMatrix(random_matrix(40, 96, torch.Generator()), None, pool(1))
    with pytest.raises(ShapeError, match="rows begin at multiples of"):
        whole.part(range(*rows), range(*columns))


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [8, 16])
def test_plain_code_of_either_width_agrees(lanes: int, tmp_path_factory) -> None:
    """16 lanes are the layout of AVX-512, whose instructions are not on every machine."""
    options = tuple("-O1" if option == "-O3" else option for option in OPTIONS)
    defines = ("-DLANEWISE_PORTABLE", f"-DLANEWISE_LANES={lanes}")
    folder = tmp_path_factory.mktemp("portable")
    native = library(BuildSettings(folder=folder, options=(*options, *defines)))
    assert (native.backend(), native.lanes()) == (b"portable", lanes)
    for bits, group in ((4, 32), (8, 32), (8, 16)):
        _compare(native, bits, group)


def _compare(native: Library, bits: int, group: int) -> None:
    generator = torch.Generator().manual_seed(bits + group)
    form = {"bits": str(bits), "group": str(group), "minima": "yes"}
    matrix = random_matrix(37, 96, generator, **form)
    x_MK = torch.randn(15, 96, generator=generator)
    ours = multiply(x_MK, PackedMatrix(matrix, None, pool(1)), pool(1))
    threads = Pool(native, 2)
    whole = PackedMatrix(matrix, None, threads, native)
    theirs = multiply(x_MK, whole, threads, native)
    assert (ours - theirs).abs().max() <= 1e-5 * ours.abs().max()
    # The first 32 columns and the others are terms of the same sum.
    rows = range(PANEL_ROWS, 37)
    parts = [whole.part(rows, columns) for columns in (range(32), range(32, 96))]
    summed = sum(
        multiply(x, part, threads, native)
        for x, part in zip(x_MK.split((32, 64), dim=1), parts, strict=True)
    )
    assert (theirs[:, PANEL_ROWS:] - summed).abs().max() <= 1e-5 * ours.abs().max()


def test_other_forms_are_refused() -> None:
    good = random_matrix(4, 64, torch.Generator())
    for bits, group in ((5, 32), (4, 16), (8, 64)):
        with pytest.raises(ShapeError, match=f"{bits} bits in groups of {group}"):
            QuantisedMatrix(good.quants_NK, good.scales_NG, None, bits, group)
    with pytest.raises(ShapeError, match="no multiple"):
        QuantisedMatrix(good.quants_NK[:, :40], good.scales_NG, None, 4, 32)
    with pytest.raises(ShapeError, match="scales has shape"):
        QuantisedMatrix(good.quants_NK, good.scales_NG[:2], None, 4, 32)
    with pytest.raises(ShapeError, match="quants is"):
        QuantisedMatrix(good.quants_NK.to(torch.int8), good.scales_NG, None, 4, 32)
    with pytest.raises(ShapeError, match="x has shape"):
        packed_gemm(torch.zeros(2, 32), good)
    with pytest.raises(ImplUnavailable, match="dtype bf16"):
        packed_gemm(torch.zeros(2, 64, dtype=torch.bfloat16), good, impl="native")
