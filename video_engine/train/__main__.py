"""Train motion-small, then export it.

``python -m video_engine.train --minutes N --out DIR [--resume]``
"""

import argparse
import tempfile
from pathlib import Path

import torch.multiprocessing as mp

from video_engine.train.export import export_weights
from video_engine.train.train import CHECKPOINT_NAME, TrainConfig, train_process


def _parse() -> TrainConfig:
    parser = argparse.ArgumentParser(prog="python -m video_engine.train", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True, help="time budget of the whole run")
    parser.add_argument("--out", type=Path, required=True, help="folder of checkpoint and weights")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the checkpoint in --out"
    )
    parser.add_argument("--warm-start", type=Path, help="checkpoint whose fitting tensors to take")
    parser.add_argument("--processes", type=int, default=2, help="single-threaded processes")
    parser.add_argument("--batch", type=int, default=24, help="clips per process and step")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return TrainConfig(
        out=given.out,
        minutes=given.minutes,
        resume=given.resume,
        warm_start=given.warm_start,
        num_processes=given.processes,
        batch_size=given.batch,
        seed=given.seed,
    )


def main() -> None:
    """Trains in child processes, then writes the averaged weights to ``OUT/weights``."""
    config = _parse()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        mp.spawn(train_process, (config, rendezvous), nprocs=config.num_processes)
    export_weights(config.out / CHECKPOINT_NAME, config.out / "weights")


if __name__ == "__main__":
    main()
