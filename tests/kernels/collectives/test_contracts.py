"""The contracts, by every form, between real processes."""

import pytest


@pytest.mark.parametrize("count", [1, 7, 40_003])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64"])
def test_exact_forms_agree_bit_for_bit_on_two_ranks(pair, dtype, count):
    assert pair.run("exact_all_reduce", dtype=dtype, count=count, reduction="sum") == [9, 9]


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", 40_003), ("float32", 5)])
def test_exact_forms_agree_bit_for_bit_on_four_ranks(four, dtype, count):
    assert four.run("exact_all_reduce", dtype=dtype, count=count, reduction="sum") == [12] * 4


def test_a_message_longer_than_the_slots_takes_rounds(pair):
    pair.run("exact_all_reduce", dtype="float32", count=700_001, reduction="sum")


def test_rounds_of_many_calls_share_the_slots(pair, four):
    pair.run("back_to_back", num_calls=24)
    four.run("back_to_back", num_calls=9)


def test_maxima(pair):
    pair.run("exact_all_reduce", dtype="bfloat16", count=1001, reduction="max")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_uneven_moves_on_two_ranks(pair, dtype):
    pair.run("moves", dtype=dtype)


def test_uneven_moves_on_four_ranks(four):
    four.run("moves", dtype="float16")


def test_fast_sums_are_near_and_alike_on_all_ranks(pair, four):
    for crew in (pair, four):
        seen = crew.run("fast", dtype="float32", count=10_001)
        assert all(names == seen[0] for names in seen)
        assert {"gloo/library", "shm/ring", "gloo/ring", "tcp/ring"} <= set(seen[0])


@pytest.mark.parametrize("count", [1, 1000, 33_333])
def test_int8_errs_within_its_steps_and_alike_on_all_ranks(pair, count):
    seen = pair.run("int8", dtype="bfloat16", count=count)
    assert seen[0] == seen[1]


def test_int8_on_four_ranks(four):
    seen = four.run("int8", dtype="float32", count=5001)
    assert all(bits == seen[0] for bits in seen)


def test_letters_carry_their_shape(pair):
    said = pair.run("letters")[1]
    assert said.startswith("MismatchedCall")
    assert "rank 0 sent float32 (2, 3), rank 1 expected float32 (6,)" in said


def test_background_operations_keep_their_order(pair):
    pair.run("background")


def test_strided_values_are_reduced_in_place(pair):
    pair.run("strided")


def test_staging_copies_down_and_up(pair):
    pair.run("staged_copies")


def test_choices_are_recorded_alike_on_all_ranks(pair):
    first, second = pair.run("decisions")
    assert first == second
    assert any("all_reduce (exact) float32 from 32 B, 2 ranks -> shm/one_shot" in d for d in first)
