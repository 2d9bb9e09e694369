"""How one phase of a model is divided over the devices of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Experts = Literal["dense", "reduce", "gather", "exchange", "local"]
_EXPERT_TEXT = {
    "reduce": "TP MoE",
    "gather": "AG/RS MoE",
    "exchange": "EP",
    "local": "local experts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees whose product is the number of devices.

    `tp` divides attention by heads, `cp` one prompt by tokens, `dp` sequences; `pp` layers;
    `replicas` repeats the model. `experts` says how rows reach experts that are divided over the
    tp x cp x dp ranks of a stage: "reduce" (every rank has all rows, sums are reduced), "gather"
    (rows all-gathered, sums reduce-scattered), "exchange" (all-to-all) or "local" (every rank
    holds all experts); "dense" for a model without. `kv_shard` ranks of a tp group divide the
    cached rows by tokens. `num_chunks` of a step overlap computation and transfers; 1 is off.
    """

    replicas: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    dp: int = 1
    experts: Experts = "local"
    kv_shard: int = 1
    num_chunks: int = 1
    wire: str = "bf16"

    @property
    def width(self) -> int:
        """Ranks of one stage."""
        return self.tp * self.cp * self.dp

    @property
    def num_devices(self) -> int:
        """All devices."""
        return self.replicas * self.pp * self.width

    @property
    def complexity(self) -> int:
        """How many mechanisms the layout needs: of equals the simpler one is taken."""
        degrees = sum(d > 1 for d in (self.pp, self.tp, self.cp, self.dp, self.kv_shard))
        extras = (self.experts in ("gather", "exchange")) + (self.num_chunks > 1)
        return degrees + extras + (self.wire != "bf16")

    @property
    def weights_key(self) -> tuple[int, int, int]:
        """What two phases must share to use one set of weights: stages, replicas, expert shards.

        Attention weights need not agree: ranks that divide heads use a part of whole ones.
        """
        return self.replicas, self.pp, 1 if self.experts in ("local", "dense") else self.width

    def __str__(self) -> str:
        """In words: "CP8 + AG/RS MoE, 2 chunks"."""
        named = {"PP": self.pp, "TP": self.tp, "CP": self.cp, "DP": self.dp}
        text = " x ".join(f"{k}{v}" for k, v in named.items() if v > 1) or "one device"
        text = f"{self.replicas} replicas of {text}" if self.replicas > 1 else text
        if self.width > 1 and self.experts != "dense":
            text += f" + {_EXPERT_TEXT[self.experts]}"
        text += f", KV/{self.kv_shard}" if self.kv_shard > 1 else ""
        text += f", {self.num_chunks} chunks overlapped" if self.num_chunks > 1 else ""
        return text + (f", {self.wire} wire" if self.wire != "bf16" else "")
