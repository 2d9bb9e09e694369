"""How one phase of a model is divided over the devices of a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Experts = Literal["dense", "columns", "reduce", "gather", "exchange", "local"]
_EXPERT_TEXT = {
    "columns": "TP MoE",
    "reduce": "EP over all rows",
    "gather": "AG/RS MoE",
    "exchange": "EP",
    "local": "local experts",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees whose product is the number of devices.

    `tp` divides attention by heads, `cp` one prompt by tokens, `dp` sequences; `pp` layers;
    `replicas` repeats the model. `experts` says how rows reach experts that are divided over the
    tp x cp x dp ranks of a stage: "columns" (every rank has all rows and some channels of every
    expert, sums are reduced), "reduce" (the same with whole experts), "gather" (rows all-gathered,
    sums reduce-scattered), "exchange" (all-to-all) or "local" (every rank holds all experts);
    "dense" for a model without. `kv_shard` ranks of a tp group divide the cached rows by tokens.
    `num_chunks` of a step overlap computation and transfers; 1 is off.
    `key_ranks` are those that decode, each with heads of its own, where prompts alone pass through
    stages: new rows go to them after each step. 1 where rows stay.
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
    key_ranks: int = 1

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
        return degrees + extras + (self.wire != "bf16") + (self.key_ranks > 1)

    @property
    def weights_key(self) -> tuple[int, int, str, int]:
        """What two phases must share to use one set of weights: stages, replicas, expert shards.

        Attention weights need not agree: ranks that divide heads use a part of whole ones.
        """
        if self.experts in ("local", "dense"):
            return self.replicas, self.pp, "whole", 1
        cut = "columns" if self.experts == "columns" else "experts"
        return self.replicas, self.pp, cut, self.width

    def serving(self, decode: Layout) -> Layout | None:
        """This layout of prompts as one set of weights and one cache with `decode` make it.

        None where they cannot: decoding in other stages needs weights by heads and whole layers,
        which one rank has only where its stage's are whole for prompts.
        """
        if self.weights_key == decode.weights_key:
            return replace(self, kv_shard=decode.kv_shard)
        is_by_heads = decode.tp == decode.width == self.pp * self.width and decode.kv_shard == 1
        has_split_experts = {self.experts, decode.experts} & {"reduce", "gather", "exchange"}
        same = self.replicas == decode.replicas and decode.pp == 1 < self.pp
        if same and is_by_heads and not has_split_experts:
            return replace(self, key_ranks=decode.tp)
        return None

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
