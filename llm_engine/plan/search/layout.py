"""How one phase of a model is divided over the devices of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

Keys = Literal["gather", "heads", "ring"]
Experts = Literal["dense", "columns", "reduce", "gather", "exchange", "local"]
_EXPERT_TEXT = {
    "columns": "TP MoE",
    "reduce": "EP over all rows",
    "gather": "AG/RS MoE",
    "exchange": "EP",
    "local": "local experts",
}
_KEYS_TEXT = {"gather": "", "heads": " by heads", "ring": " ring"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees whose product is the number of devices.

    `tp` divides attention by heads, `cp` the rows of each sequence, `dp` whole sequences; `pp`
    layers; `replicas` repeats the model. `keys` says how cp ranks meet each other's keys: gathered
    on all of them, exchanged by "heads", or each on the rank of its position, passed in a "ring".
    `experts` says how rows reach experts that are divided over the
    tp x cp x dp ranks of a stage: "columns" (every rank has all rows and some channels of every
    expert, sums are reduced), "reduce" (the same with whole experts), "gather" (rows all-gathered,
    sums reduce-scattered), "exchange" (all-to-all) or "local" (every rank holds all experts);
    "dense" for a model without. With dp, channels of MLPs are cut over all ranks of a stage too:
    rows are gathered before each and sums scattered behind it. `kv_shard` ranks of a tp group
    divide the cached rows by tokens.
    `num_chunks` of a step overlap computation and transfers; 1 is off.
    `key_ranks` are those that decode, each with heads of its own, where prompts alone pass through
    stages: new rows go to them after each step. 1 where rows stay.
    """

    replicas: int = 1
    pp: int = 1
    tp: int = 1
    cp: int = 1
    dp: int = 1
    keys: Keys = "gather"
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
    def shares_mlps(self) -> bool:
        """Whether ranks with sequences of their own compute MLPs together, each its channels."""
        return self.dp > 1 and self.experts in ("gather", "dense")

    def row_share(self, rows: int, num_sequences: int) -> float:
        """The part of a step's rows that the fullest rank has: dp deals out whole sequences."""
        own = rows * math.ceil(num_sequences / self.dp) / num_sequences
        return math.ceil(own / self.cp) / rows

    @property
    def complexity(self) -> int:
        """How many mechanisms the layout needs: of equals the simpler one is taken."""
        degrees = sum(d > 1 for d in (self.pp, self.tp, self.cp, self.dp, self.kv_shard))
        extras = (self.experts in ("gather", "exchange")) + (self.num_chunks > 1)
        extras += self.cp > 1 and self.keys == "ring"
        return degrees + extras + (self.wire != "bf16") + (self.key_ranks > 1)

    @property
    def weights_key(self) -> tuple[int, int, str, int]:
        """What two phases must share to use one set of weights: stages, replicas, expert shards.

        Attention weights need not agree: ranks that divide heads use a part of whole ones.
        """
        if self.experts in ("local", "dense") and self.dp == 1:
            return self.replicas, self.pp, "whole", 1
        if self.experts == "dense":
            return self.replicas, self.pp, "MLPs", self.width
        cut = "columns" if self.experts == "columns" else "experts"
        return self.replicas, self.pp, cut, self.width

    def serving(self, decode: Layout) -> Layout | None:
        """This layout of prompts as one set of weights and one cache with `decode` make it.

        None where they cannot: decoding in other stages needs weights by heads and whole layers,
        which one rank has only where its stage's are whole for prompts. Keys that lie with their
        sequence, or by their position, stay there.
        """
        if self.weights_key == decode.weights_key:
            return replace(self, kv_shard=decode.kv_shard) if self._keeps_keys(decode) else None
        is_by_heads = decode.tp == decode.width == self.pp * self.width and decode.kv_shard == 1
        has_split_experts = {self.experts, decode.experts} & {"reduce", "gather", "exchange"}
        same = self.replicas == decode.replicas and decode.pp == 1 < self.pp
        same &= self.dp == 1 and (self.cp == 1 or self.keys != "ring")
        if same and is_by_heads and not has_split_experts:
            return replace(self, key_ranks=decode.tp)
        return None

    def _keeps_keys(self, decode: Layout) -> bool:
        """Whether decoding finds each key where this layout of prompts leaves it."""
        if self.dp > 1 and (self.dp, self.tp) != (decode.dp, decode.tp):
            return False
        if "ring" in {self.keys if self.cp > 1 else "", decode.keys if decode.cp > 1 else ""}:
            return (self.cp, self.tp, self.keys) == (decode.cp, decode.tp, decode.keys)
        return self.cp == 1 or self.keys != "heads" or decode.tp == self.tp * self.cp

    def __str__(self) -> str:
        """In words: "CP8 ring + AG/RS MoE, 2 chunks"."""
        named = {"PP": self.pp, "TP": self.tp, "CP": self.cp, "DP": self.dp}
        texts = {axis: f"{axis}{n}" for axis, n in named.items() if n > 1}
        if self.cp > 1:
            texts["CP"] += _KEYS_TEXT[self.keys]
        text = " x ".join(texts.values()) or "one device"
        text = f"{self.replicas} replicas of {text}" if self.replicas > 1 else text
        if self.width > 1 and self.experts != "dense":
            text += f" + {_EXPERT_TEXT[self.experts]}"
        text += f", KV/{self.kv_shard}" if self.kv_shard > 1 else ""
        text += f", {self.num_chunks} chunks overlapped" if self.num_chunks > 1 else ""
        return text + (f", {self.wire} wire" if self.wire != "bf16" else "")
