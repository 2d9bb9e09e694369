"""A rank's part of a forward on a device other than the host: no tensor of the host slips in.

The device is torch's "meta": it raises where it meets the host, and where a value is read back.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernels.collectives.schedules.threads import run_serially
from video_engine.parallel.command import ForwardCommand
from video_engine.parallel.head_exchange import HeadExchange
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.place import Place, runs
from video_engine.parallel.wan_rows import WanRows

DEVICE = torch.device("meta")
HEADS, SIZE, RANK = 3, 2, 1


class Standing:
    """A communicator that gives as many values as would come, on the device they were sent from."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def all_to_all(self, x: torch.Tensor, sizes: list[int], *, contract: str) -> Any:
        assert x.device == DEVICE
        assert sum(sizes) == len(x)
        return x.new_empty(self._num_rows, *x.shape[1:]), []


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.einsum("shd,nhd->hsn", q, k)
    return torch.einsum("hsn,nhd->shd", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("has_time_by_token", [False, True])
def test_a_wan_forward_stays_on_its_device(has_time_by_token: bool) -> None:
    from diffusers import WanTransformer3DModel

    tokens = 3 * 3 * 5
    own, heads = runs(tokens, SIZE)[RANK], runs(HEADS, SIZE)[RANK]
    mesh: Any = SimpleNamespace(
        layout=VideoLayout(ulysses=SIZE),
        place=Place(0, RANK),
        arrive=Standing(tokens * 3 * len(heads)),
        leave=Standing(len(own) * HEADS),
    )
    with DEVICE:
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=HEADS, attention_head_dim=12, text_dim=32,
            freq_dim=32, ffn_dim=32, num_layers=2, in_channels=6, out_channels=4,
            rope_max_seq_len=64,
        )  # fmt: skip
    with torch.no_grad():
        exchange = HeadExchange(mesh, HEADS, 1, "exact", run_serially, attend)
        rows = WanRows(model, exchange, SIZE, RANK)
        timestep = torch.rand(1, tokens) if has_time_by_token else torch.rand(1)
        shared = {
            "hidden_states": torch.empty(1, 6, 3, 6, 10, device=DEVICE),
            "timestep": timestep.to(DEVICE),
        }
        branch = {"encoder_hidden_states": torch.empty(1, 7, 32, device=DEVICE)}
        command = ForwardCommand.of("t", shared, [branch])
        given, (text,) = command.unpacked(command.packed(shared, [branch], DEVICE))
        found = rows(given | text)
        assert found.device == DEVICE
        assert found.shape == (len(own), 16)
        (whole,) = rows.whole(found.new_empty(tokens, 16), given)
        assert whole.shape == (1, 4, 3, 6, 10)


def test_a_tensor_left_on_the_host_would_be_noticed() -> None:
    with pytest.raises(RuntimeError, match="device"):
        torch.empty(3, device=DEVICE) + torch.empty(3)
