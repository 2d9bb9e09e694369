"""How the ranks of a video model divide a denoising step, and what they send for it.

Sizes: S rows of the packed sequence, A width of attention, C width of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from kernels.cost_model.exchange import Exchange, Operation

if TYPE_CHECKING:
    from kernels.layer_groups import ModelShape

_ITEM_BYTES = 2
_EXCHANGED = 4  # queries, keys, values, and the result back


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipLayout:
    """Degrees whose product is the number of devices.

    `cfg` gives each branch of guidance devices of its own. `ulysses` divides rows and, inside
    attention, heads; `ring` divides rows and passes keys and values around; `tp` divides heads
    and channels. `num_groups` of heads overlap the exchange of one group with the attention of
    another; 1 is off.
    """

    cfg: int = 1
    ulysses: int = 1
    ring: int = 1
    tp: int = 1
    num_groups: int = 1

    @property
    def num_devices(self) -> int:
        """All devices."""
        return self.cfg * self.ulysses * self.ring * self.tp

    @property
    def complexity(self) -> int:
        """How many mechanisms it needs: of equals the simpler one is taken."""
        degrees = (self.cfg, self.ulysses, self.ring, self.tp, self.num_groups)
        return sum(d > 1 for d in degrees)

    @property
    def setting(self) -> str | None:
        """As the engine takes it: "cfg2,ulysses4,groups2"; None where it has no such division."""
        if self.tp > 1 or self.ring > 1:
            return None
        named = {"cfg": self.cfg, "ulysses": self.ulysses, "groups": self.num_groups}
        return ",".join(f"{axis}{n}" for axis, n in named.items() if n > 1)

    def __str__(self) -> str:
        """In words: "TP2 x Ulysses 4, 4 head groups overlapped"."""
        named = {
            "CFG": self.cfg,
            "TP": self.tp,
            "Ulysses ": self.ulysses,
            "ring ": self.ring,
        }
        text = " x ".join(f"{k}{v}" for k, v in named.items() if v > 1) or "one device"
        groups = self.num_groups
        return text + (f", {groups} head groups overlapped" if groups > 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipFacts:
    """What decides how a step is divided. Units: rows, values."""

    rows: int
    heads: int
    attention_width: int
    width: int
    num_blocks: int

    @property
    def kv_bytes(self) -> float:
        """Keys and values of all rows in one block."""
        return 2.0 * self.rows * self.attention_width * _ITEM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipTransfer:
    """`count` equal exchanges of a step among n ranks. Units: bytes, as `Exchange.seconds`."""

    operation: Operation
    size_bytes: float
    n: int
    count: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that leave one rank in all of them."""
        times = 2 if self.operation == "all_reduce" else 1
        return self.count * times * (self.n - 1) / self.n * self.size_bytes


def clip_facts(shape: ModelShape) -> ClipFacts:
    """Of the denoising phase: the largest self-attention and the blocks that hold it.

    Raises: ValueError for a model without one.
    """
    found = [
        (use.case.sizes["S"] * use.case.sizes["N"], group, use)
        for group in shape.phase("denoise").groups
        for use in group.uses
        if use.op == "full_attention" and group.layers
    ]
    if not found:
        raise ValueError(f"{shape.name} has no attention over its rows: nothing to divide")
    _, group, attention = max(found, key=lambda item: item[0])
    sizes = attention.case.sizes
    width = sizes["H"] * sizes["D"]
    back = [u.case.sizes["N"] for u in group.uses if u.op == "gemm" and u.case.sizes["K"] == width]
    return ClipFacts(
        rows=sizes["S"],
        heads=sizes["H"],
        attention_width=width,
        width=min(back, default=width),
        num_blocks=len(group.layers),
    )


def clip_layouts(
    facts: ClipFacts, num_devices: int, num_branches: int = 1
) -> tuple[ClipLayout, ...]:
    """Every division of the devices that heads and branches allow, with and without overlap."""
    degrees = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
    branches = [d for d in degrees if d <= num_branches]
    found: list[ClipLayout] = []
    for cfg, ulysses, ring, tp in product(branches, degrees, degrees, degrees):
        layout = ClipLayout(cfg=cfg, ulysses=ulysses, ring=ring, tp=tp)
        if layout.num_devices != num_devices or facts.heads < ulysses * tp or facts.heads % tp:
            continue
        found.append(layout)
        own_heads = facts.heads // (ulysses * tp)
        if ulysses > 1 and own_heads > 1:
            found.append(replace(layout, num_groups=min(4, own_heads)))
    return tuple(found)


def exchanged_heads(facts: ClipFacts, layout: ClipLayout) -> ClipTransfer:
    """All-to-alls around attention: queries, keys and values there, the result back."""
    own_rows = facts.rows / (layout.ulysses * layout.ring)
    size = own_rows * facts.attention_width / layout.tp * _ITEM_BYTES
    count = _EXCHANGED * facts.num_blocks if layout.ulysses > 1 else 0
    return ClipTransfer(operation="all_to_all", size_bytes=size, n=layout.ulysses, count=count)


def passed_keys(facts: ClipFacts, layout: ClipLayout) -> ClipTransfer:
    """Keys and values around the ring, one neighbour after the other, over its slowest link."""
    size = facts.kv_bytes / layout.ulysses / layout.tp
    count = facts.num_blocks if layout.ring > 1 else 0
    return ClipTransfer(operation="ring", size_bytes=size, n=layout.ring, count=count)


def reduced_rows(facts: ClipFacts, layout: ClipLayout) -> ClipTransfer:
    """Sums after attention and after the feed-forward of each block."""
    size = facts.rows / (layout.ulysses * layout.ring) * facts.width * _ITEM_BYTES
    count = 2 * facts.num_blocks if layout.tp > 1 else 0
    return ClipTransfer(operation="all_reduce", size_bytes=size, n=layout.tp, count=count)


def transfer_s(transfer: ClipTransfer, exchange: Exchange, stride: int = 1) -> float:
    """Seconds of all its exchanges. `stride`: ranks of a group lie so far apart."""
    if not transfer.count:
        return 0.0
    links = exchange.strided(stride)
    return transfer.count * links.seconds(transfer.operation, transfer.size_bytes, transfer.n)
