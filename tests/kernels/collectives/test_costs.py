"""Cost formulas against published crossovers, floors and a table computed by hand elsewhere."""

import math

import pytest

from kernels.collectives import costs
from kernels.collectives.costs import LinkCosts

KIB, MIB = 1024, 1024**2


def links(a_us, fan_gb_s, ring_gb_s, **more):
    return LinkCosts(
        latency_s=a_us * 1e-6, fan_bytes_s=fan_gb_s * 1e9, ring_bytes_s=ring_gb_s * 1e9, **more
    )


@pytest.mark.parametrize(
    ("size", "link", "one_to_two_kib", "two_to_ring_kib"),
    [
        (4, links(5, 25, 40), 81, 868),
        (8, links(6, 25, 37), 28, 3097),
        (4, links(5, 12, 20), 39, 391),
        (8, links(6, 8, 15), 9, 689),
    ],
)
def test_crossovers(size, link, one_to_two_kib, two_to_ring_kib):
    assert round(costs.one_to_two_shot_bytes(size, link) / KIB) == pytest.approx(
        one_to_two_kib, abs=1
    )
    assert round(costs.two_shot_to_ring_bytes(size, link) / KIB) == pytest.approx(
        two_to_ring_kib, abs=1
    )


def test_at_a_crossover_both_take_as_long():
    link = links(6, 8, 15)
    at = costs.one_to_two_shot_bytes(8, link)
    assert costs.one_shot_s(at, 8, link) == pytest.approx(costs.two_shot_s(at, 8, link))
    at = costs.two_shot_to_ring_bytes(8, link)
    assert costs.two_shot_s(at, 8, link) == pytest.approx(costs.ring_s(at, 8, link))


def test_no_crossover_where_there_is_none():
    assert costs.one_to_two_shot_bytes(2, links(5, 10, 20)) == math.inf
    assert costs.two_shot_to_ring_bytes(4, links(5, 20, 20)) == math.inf


@pytest.mark.parametrize(
    ("formula", "size", "ring_gb_s", "more", "floor_us"),
    [
        (costs.ring_s, 4, 25.45, {}, 5932),
        (costs.island_s, 8, 25.4, {"cross_bytes_s": 9.7e9}, 8532),
        (costs.ring_s, 8, 20.75, {}, 8490),
        (costs.ring_s, 8, 49.6, {}, 3549),
        (costs.island_s, 8, 52.3, {"cross_bytes_s": 23.75e9}, 3947),
    ],
)
def test_floors_of_96_mib(formula, size, ring_gb_s, more, floor_us):
    link = links(0, ring_gb_s, ring_gb_s, **more)
    assert formula(96 * MIB, size, link) * 1e6 == pytest.approx(floor_us, rel=0.004)


EIGHT = links(
    6, 8, 15, host_latency_s=12e-6, host_bytes_s=22e9, dram_bytes_s=150e9, codec_bytes_s=700e9
)
ISLANDS = links(6, 8, 25, cross_latency_s=6e-6, cross_bytes_s=9.7e9)


@pytest.mark.parametrize(
    ("size_bytes", "expected_us"),
    [
        (8 * KIB, (13, 14, 85, 43, 37, 13, 85)),
        (64 * KIB, (63, 26, 92, 48, 46, 20, 88)),
        (512 * KIB, (465, 127, 145, 87, 116, 73, 118)),
        (4 * MIB, (3676, 930, 573, 402, 679, 503, 354)),
        (32 * MIB, (29366, 7352, 3999, 2920, 5181, 3943, 2248)),
        (128 * MIB, (117447, 29372, 15743, 11554, 20616, 15737, 8739)),
    ],
)
def test_eight_cards_on_gen4(size_bytes, expected_us):
    formulas = (
        (costs.one_shot_s, EIGHT),
        (costs.two_shot_s, EIGHT),
        (costs.ring_s, EIGHT),
        (costs.island_s, ISLANDS),
        (costs.host_staged_s, EIGHT),
        (costs.quantised(costs.two_shot_s), EIGHT),
        (costs.quantised(costs.ring_s), EIGHT),
    )
    for (formula, link), us in zip(formulas, expected_us, strict=True):
        assert formula(size_bytes, 8, link) * 1e6 == pytest.approx(us, rel=0.005, abs=0.6)
