"""What the loader makes of a machine, and what it measures."""

from pathlib import Path

import torch

from llm_engine.device import EngineDevice
from llm_engine.loader import LoadedModel, choose_dtype, has_bf16_units

CPU = EngineDevice.of("cpu")


def test_auto_dtype_follows_the_cpu(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name : x\nflags\t\t: fpu avx512_bf16 sse\n")
    assert choose_dtype("auto", CPU, cpuinfo) == torch.bfloat16
    assert choose_dtype("float32", CPU, cpuinfo) == torch.float32
    cpuinfo.write_text("flags\t\t: fpu avx2\n")
    assert choose_dtype("auto", CPU, cpuinfo) == torch.float32
    assert not has_bf16_units(tmp_path / "absent")


def test_weight_bytes_are_those_of_the_parameters(tiny_loaded: LoadedModel) -> None:
    parameters = tiny_loaded.model.num_parameters * 4
    assert 0 <= tiny_loaded.weight_bytes - parameters <= 4096  # the rotary frequencies
    assert tiny_loaded.facts.unpacked_bytes == parameters
