"""The families table: complete, honest about what it does not know, and without an order."""

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kernels.hardware.errors import MalformedFile, UnknownName
from kernels.hardware.tables import Table
from kernels.hardware.traits import (
    FAMILIES,
    DeviceTraits,
    family_names,
    load_traits,
    parse_traits,
)

ROOT = Path(__file__).resolve().parents[3]
NVIDIA = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")
AMD = ("gfx942", "gfx950", "gfx1100")
OTHERS = ("ascend_910b", "musa_s5000", "hygon_dcu", "kunlun_p800", "metax_c500")
CPUS = ("cpu_baseline", "avx2", "avx512", "avx512_bf16", "amx")


def row(name):
    return tomllib.loads((FAMILIES / f"{name}.toml").read_text("utf-8"))


def differing(one, other):
    cells = {f.name for f in dataclasses.fields(DeviceTraits)}
    cells -= {"name", "description", "notes", "source", "triton_target"}
    return {c for c in cells if getattr(load_traits(one), c) != getattr(load_traits(other), c)}


def test_every_family_of_the_design_has_a_row_and_there_are_no_others():
    assert set(family_names()) == {*NVIDIA, *AMD, *OTHERS, *CPUS}


@pytest.mark.parametrize("name", family_names())
def test_a_row_holds_every_cell_and_says_why_a_cell_is_empty(name):
    traits = load_traits(name)
    assert set(row(name)) == {f.name for f in dataclasses.fields(DeviceTraits)}
    assert len(traits.source) > 20 or name == "cpu_baseline"
    for cell in traits.unknown_cells():
        assert traits.note(cell).startswith(("n/a: ", "unverified: "))


def test_a_row_is_a_value_that_can_be_hashed_and_printed():
    traits = load_traits("sm_120")
    assert traits == load_traits("sm_120")
    assert hash(traits) == hash(load_traits("sm_120"))
    assert dataclasses.asdict(traits)["notes"][0]["cell"]


def test_only_the_level_that_the_suite_runs_on_counts_as_verified():
    assert [name for name in family_names() if load_traits(name).verified] == ["avx512_bf16"]


def test_blackwell_is_not_one_thing():
    assert differing("sm_120", "sm_100") == {
        "mma_family",
        "tcgen05",
        "max_smem_bytes",
        "symmetric_memory",
        "p2p",
    }
    assert load_traits("sm_120").max_smem_bytes == 101_376
    assert load_traits("sm_100").max_smem_bytes == 232_448
    assert not load_traits("sm_120").tcgen05
    assert load_traits("sm_100").tcgen05


def test_sm_120_and_sm_89_differ_where_kernels_care():
    assert differing("sm_120", "sm_89") == {"fp4_mma", "tma", "pdl"}


def test_the_two_cdna_generations_write_fp8_differently():
    assert load_traits("gfx942").fp8_format == "e4m3fnuz"
    assert load_traits("gfx950").fp8_format == "e4m3fn"


def test_tensor_memory_and_warpgroups_belong_to_the_families_that_have_them():
    assert {n for n in family_names() if load_traits(n).tcgen05} == {"sm_100", "sm_103"}
    assert {n for n in family_names() if load_traits(n).wgmma} == {"sm_90"}


def test_sparse_attention_has_to_be_asked_for_exactly_where_neither_vendor_is_nvidia_nor_amd():
    explicit = {n for n in family_names() if load_traits(n).sparse_attention_default != "on"}
    assert explicit == set(OTHERS)


@pytest.mark.parametrize("name", OTHERS)
def test_other_vendors_start_without_our_peer_mechanisms(name):
    traits = load_traits(name)
    assert {traits.pdl, traits.custom_allreduce, traits.tma, traits.cp_async} == {False}
    assert traits.p2p == "unknown"


@pytest.mark.parametrize("name", family_names())
def test_cells_agree_with_each_other(name):
    traits = load_traits(name)
    assert (traits.fp8_format == "none") == (traits.fp8_mma is False)
    assert (traits.simd_level == name) == (traits.kind == "cpu")
    assert traits.tcgen05 == (traits.mma_family == "tcgen05")
    assert traits.wgmma == (traits.mma_family == "wgmma")
    if traits.triton_target != "none":
        backend, target, warp = traits.triton_target.split(":")
        assert {"cuda": "cuda", "hip": "rocm"}[backend] == traits.backend
        assert traits.name == (f"sm_{target}" if backend == "cuda" else target)
        assert int(warp) == traits.warp_size


@pytest.mark.parametrize("name", ["sm_12", "sm_110", "SM_120", "blackwell", "", "../products/l40s"])
def test_a_family_is_found_by_its_exact_name_or_not_at_all(name):
    with pytest.raises(UnknownName) as caught:
        load_traits(name)
    assert all(family in str(caught.value) for family in family_names())


@pytest.mark.parametrize("cell", [f.name for f in dataclasses.fields(DeviceTraits)])
def test_a_row_without_a_cell_is_refused_by_that_cell(cell):
    values = row("sm_120")
    del values[cell]
    with pytest.raises(MalformedFile, match=rf"sm_120: {cell}: missing"):
        parse_traits(Table(values, "sm_120"), "sm_120")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor_cores": True}, "tensor_cores: unknown key"),
        ({"warp_size": 0}, "warp_size: 0 must be a whole number from 1 to 1024"),
        ({"warp_size": "wide"}, "warp_size: 'wide' must be a whole number from 1 to 1024"),
        ({"tcgen05": "unknown"}, "tcgen05: 'unknown' must be true or false"),
        ({"fp8_mma": "yes"}, "fp8_mma: 'yes' must be true, false or"),
        ({"fp8_format": "e5m2"}, "fp8_format: 'e5m2' must be one of e4m3fn, "),
        ({"name": "sm_100"}, "name: 'sm_100' must be one of sm_120"),
        ({"graph_capture": "unknown"}, "graph_capture: is unknown, so notes must say why"),
        ({"notes": {"smem": "x"}}, r"notes\.smem: notes a cell that no row has"),
        ({"cpu_flags": "avx2"}, "cpu_flags: 'avx2' must be a list of strings"),
    ],
)
def test_a_wrong_cell_is_refused_with_its_name_and_bound(changes, message):
    with pytest.raises(MalformedFile, match=f"row.toml: {message}"):
        parse_traits(Table(row("sm_120") | changes, "row.toml"), "sm_120")


def test_facts_are_read_without_torch_and_triton():
    program = (
        "import sys; from kernels.hardware import detect, machine, machine_text, profile, traits;"
        "traits.load_traits('sm_120'); machine.load_machine('8x-l40s');"
        "profile.load_profile('cuda'); detect.detect(readers=());"
        "assert not {'torch', 'triton', 'pynvml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
