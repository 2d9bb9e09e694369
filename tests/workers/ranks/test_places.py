"""Where a rank's tensors are, as its order says it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workers.ranks.order import RankOrder

ORDER = RankOrder(
    rank=2, num_ranks=4, epoch=0, rendezvous="file:///nowhere", parent_pid=1, mail_descriptor=3,
    bell_descriptor=4, beat_descriptor=5, join_s=1.0, wait_s=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("device", "place"), [("cpu", torch.device("cpu")), ("cuda", torch.device("cuda", 2))]
)
def test_a_rank_has_the_device_of_its_number(device: str, place: torch.device) -> None:
    order = replace(ORDER, device=device)
    assert order.place == place
    assert RankOrder.from_json(order.to_json()) == order


def test_ranks_are_on_the_processor_unless_told() -> None:
    assert ORDER.place.type == "cpu"
