"""Vendor profiles: what is off, and why, as a plan prints it."""

import tomllib

import pytest

from kernels.hardware.errors import MalformedFile, UnknownName
from kernels.hardware.profile import (
    MECHANISMS,
    PROFILES,
    load_profile,
    parse_profile,
    profile_names,
)
from kernels.hardware.tables import Table
from kernels.hardware.traits import BACKENDS, family_names, load_traits

DOMESTIC = ("cann", "musa", "dtk", "kunlun", "maca")


def values(name):
    return tomllib.loads((PROFILES / f"{name}.toml").read_text("utf-8"))


def test_every_backend_of_every_family_has_a_profile():
    assert set(profile_names()) == set(BACKENDS)
    assert {load_traits(name).backend for name in family_names()} == set(BACKENDS)


@pytest.mark.parametrize("name", DOMESTIC)
def test_other_vendors_run_with_the_mechanisms_off_and_sparse_attention_asked_for(name):
    profile = load_profile(name)
    assert profile.mechanisms_off == MECHANISMS
    lines = profile.lines()
    assert lines[0].startswith("sparse attention: must be switched on explicitly (")
    assert [line.split(":")[0] for line in lines[1:]] == list(MECHANISMS)
    assert all(line.endswith(")") and len(line) > 30 for line in lines)


def test_nvidia_and_amd_have_sparse_attention_on():
    assert load_profile("cuda").lines()[0].startswith("sparse attention: on")
    assert load_profile("cuda").mechanisms_off == ()
    assert load_profile("rocm").mechanisms_off == ("pdl", "symmetric_memory")


@pytest.mark.parametrize("family", family_names())
def test_a_profile_and_the_families_of_its_backend_agree(family):
    traits = load_traits(family)
    profile = load_profile(traits.backend)
    assert profile.sparse_attention == traits.sparse_attention_default
    if traits.fp8_mma is False and traits.kind != "cpu":
        assert set(profile.fp8_gemm) - {"native"}, "no way left to multiply fp8 weights"
    if profile.num_warps_cap is not None and traits.warp_size is not None:
        assert profile.num_warps_cap * traits.warp_size <= 1024


def test_an_unknown_profile_lists_those_that_exist():
    with pytest.raises(UnknownName, match="cann, cpu, cuda, dtk, kunlun, maca, musa, rocm"):
        load_profile("nvidia")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kernel_classes": ["cutlass"]}, "kernel_classes: 'cutlass' must be one of triton"),
        ({"kernel_classes": []}, "kernel_classes: must name at least one of triton"),
        ({"sparse_attention": "off"}, "sparse_attention: 'off' must be one of on, explicit"),
        ({"page_size": 0}, "page_size: 0 must be a whole number from 1 to 4096"),
        ({"reasons": {}}, "reasons.sparse_attention: missing"),
        ({"dtype": "bf16"}, "dtype: unknown key"),
    ],
)
def test_a_wrong_key_is_refused_with_its_name_and_bound(changes, message):
    with pytest.raises(MalformedFile, match=f"p.toml: {message}"):
        parse_profile(Table(values("cuda") | changes, "p.toml"))
