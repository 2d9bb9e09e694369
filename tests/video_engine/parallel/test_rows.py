"""Transformers over some of the rows against the stock forward over all of them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from kernels.collectives.schedules.threads import run_serially, run_threads
from video_engine.parallel.command import ForwardCommand
from video_engine.parallel.forward import RankForward
from video_engine.parallel.h3_rows import H3Rows
from video_engine.parallel.head_exchange import HeadExchange
from video_engine.parallel.layout import VideoLayout
from video_engine.parallel.mesh import Mesh
from video_engine.parallel.wan_rows import WanRows

# A product over fewer rows may add its terms in another order: some roundings of float32 for each
# of the few layers, of outputs around 1.
TOLERANCE = 5e-6
CPU = torch.device("cpu")


def wan(heads: int, **changes: Any) -> Any:
    from diffusers import WanTransformer3DModel

    torch.manual_seed(1)
    config: dict[str, Any] = {
        "patch_size": (1, 2, 2), "num_attention_heads": heads, "attention_head_dim": 12,
        "text_dim": 32, "freq_dim": 32, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 64, "in_channels": 6,
        "out_channels": 4,
    }  # fmt: skip
    return WanTransformer3DModel(**(config | changes)).eval()


def h3(heads: int) -> Any:
    from diffusers import MiniMaxH3Transformer3DModel

    torch.manual_seed(1)
    return MiniMaxH3Transformer3DModel(
        num_attention_heads=heads, attention_head_dim=16, hidden_size=48, num_layers=2,
        num_refiner_layers=1, ffn_dim=96, in_channels=4, audio_in_channels=8,
        patch_size=(1, 2, 2), text_dim=32, freq_dim=32, time_embed_hidden_dim=48,
        time_embed_dim=24, rope_freq_dim=2,
    ).eval()  # fmt: skip


def wan_inputs(frames: int, height: int, width: int, **more: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    x = torch.randn(1, 6, frames, height * 2, width * 2)
    return {"hidden_states": x, "timestep": torch.tensor([431.0])} | more


def wan_case(name: str) -> tuple[Any, dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    torch.manual_seed(3)
    texts = [{"encoder_hidden_states": torch.randn(1, 7, 32)} for _ in range(2)]
    if name == "odd":  # 45 tokens, 3 heads
        return wan(3), wan_inputs(3, 3, 5), texts
    if name == "few":  # fewer tokens than some layouts have ranks
        return wan(5), wan_inputs(1, 1, 3), texts
    if name == "picture":
        model = wan(2, image_dim=16, added_kv_proj_dim=24)
        texts = [{"encoder_hidden_states": torch.randn(1, 512, 32)} for _ in range(2)]
        picture = {"encoder_hidden_states_image": torch.randn(1, 5, 16)}
        return model, wan_inputs(2, 2, 3, **picture), texts
    if name == "times":  # one time a token
        times = {"timestep": torch.rand(1, 14) * 999}
        return wan(3), wan_inputs(2, 1, 7, **times), texts
    assert name == "few times"
    return wan(3), wan_inputs(1, 1, 2, timestep=torch.rand(1, 2) * 999), texts


def h3_case() -> tuple[Any, dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    torch.manual_seed(4)
    num_text, num_video, num_sound = 5, 13, 7
    rows = torch.randperm(num_text + num_video + num_sound)
    text, video, sound = (
        part.sort().values for part in rows.split((num_text, num_video, num_sound))
    )
    tags = torch.zeros(len(rows), dtype=torch.int64)
    tags[text], tags[sound] = 1, 2
    inputs = {
        "hidden_states": torch.randn(1, num_video, 16),
        "audio_hidden_states": torch.randn(1, num_sound, 8),
        "encoder_hidden_states": torch.randn(1, num_text, 32),
        "timestep": torch.tensor([0.2, 0.4, 0.999]),
        "timestep_indices": torch.randint(0, 3, (len(rows),)),
        "token_tags": tags,
        "position_ids": torch.rand(len(rows), 3, dtype=torch.float64) * 9,
        "video_indices": video,
        "audio_indices": sound,
        "text_indices": text,
    }
    return h3(3), inputs, [{}]


def divided(
    threads: ModuleType, make: Any, rows: Any, layout: VideoLayout, shared: Any, branches: Any
) -> list[tuple[torch.Tensor, ...]]:
    """What rank 0 gets; every rank has a model of its own, as processes have."""
    models = [make() for _ in range(layout.num_ranks)]
    world = threads.ThreadWorld(layout.num_ranks)
    command = ForwardCommand.of("transformer", shared, branches)

    def work(rank: int) -> Any:
        mesh = Mesh(world.communicator(rank), layout, world.join_part)
        exchange, model = None, models[rank]
        if layout.ulysses > 1:
            heads = model.config.num_attention_heads
            run = run_threads if layout.groups else run_serially
            exchange = HeadExchange(mesh, heads, layout.groups or 1, layout.wire, run)
        row_model = rows(model, exchange, layout.ulysses, mesh.place.ulysses)
        forward = RankForward({"transformer": row_model}, mesh, CPU)
        if rank == 0:
            return forward.lead(command, shared, branches)
        return forward.follow(command.encode())

    return world.run(work)[0]


@torch.no_grad()
def stock(model: Any, shared: Any, branches: Any) -> list[tuple[torch.Tensor, ...]]:
    return [model(**shared, **branch, return_dict=False) for branch in branches]


def worst(found: Any, expected: Any) -> float:
    pairs = zip(
        [x for outputs in found for x in outputs],
        [x for outputs in expected for x in outputs],
        strict=True,
    )
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("layout", ["ulysses2", "ulysses4", "ulysses3,groups1", "cfg2,ulysses2"])
@pytest.mark.parametrize("name", ["odd", "few", "picture", "times", "few times"])
def test_wan_over_ranks(threads: ModuleType, name: str, layout: str) -> None:
    model, shared, branches = wan_case(name)
    expected = stock(model, shared, branches)
    assert all(float(x.std()) > 0.01 for outputs in expected for x in outputs)
    parsed = VideoLayout.parse(layout)
    found = divided(threads, lambda: wan_case(name)[0], WanRows, parsed, shared, branches)
    assert worst(found, expected) <= TOLERANCE


@pytest.mark.parametrize("layout", ["ulysses2", "ulysses3,groups1", "ulysses4"])
def test_h3_over_ranks(threads: ModuleType, layout: str) -> None:
    model, shared, branches = h3_case()
    expected = stock(model, shared, branches)
    parsed = VideoLayout.parse(layout)
    found = divided(threads, lambda: h3_case()[0], H3Rows, parsed, shared, branches)
    assert worst(found, expected) <= TOLERANCE


@pytest.mark.parametrize("num_branches", [1, 2])
def test_branches_on_ranks_of_their_own_are_the_stock_bits(
    threads: ModuleType, num_branches: int
) -> None:
    model, shared, branches = wan_case("odd")
    branches = branches[:num_branches]
    expected = stock(model, shared, branches)
    layout = VideoLayout.parse("cfg2")
    found = divided(threads, lambda: wan_case("odd")[0], WanRows, layout, shared, branches)
    assert worst(found, expected) == 0.0


def test_groups_change_no_bit(threads: ModuleType) -> None:
    _, shared, branches = wan_case("few")
    one, two = (
        divided(
            threads, lambda: wan_case("few")[0], WanRows, VideoLayout.parse(text), shared, branches
        )
        for text in ("ulysses2", "ulysses2,groups3")
    )
    assert worst(one, two) == 0.0
