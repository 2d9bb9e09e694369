"""`python -m benchmarks.peers.unpacked FOLDER [GGUF]`: a GGUF's weights as a float32 checkpoint.

For engines that read no GGUF. The values are those that transformers unpacks.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.llm.contestants import UNPACKED_STAMP, origin_of
from benchmarks.llm.options import DEFAULT_MODEL
from llm_engine.weights.resolve import resolve


def unpack(gguf: Path, folder: Path) -> None:
    """Write config, weights and tokenizer; does nothing where this file's are there already."""
    stamp, origin = folder / UNPACKED_STAMP, origin_of(gguf)
    if stamp.is_file() and stamp.read_text() == origin:
        return
    folder.mkdir(parents=True, exist_ok=True)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # A model loaded from GGUF refuses to be saved: a fresh one takes its values.
    config = type(loaded.config).from_dict(loaded.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    stamp.write_text(origin)


def main() -> int:
    """Unpack what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.unpacked")
    parser.add_argument("folder", type=Path)
    parser.add_argument("gguf", nargs="?", default=DEFAULT_MODEL)
    given = parser.parse_args()
    source = resolve(str(given.gguf))
    if source.kind != "gguf":
        parser.error(f"{given.gguf} is no GGUF file")
    unpack(source.path, given.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
