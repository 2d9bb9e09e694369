"""Why a clip lies over its ranks as it does, for the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kernels.dispatch import choose
from kernels.ledger import Decision, Rejection
from kernels.ops.full_attention.spec import SPEC
from kernels.runtime import device_traits
from kernels.spec import Case, Tier
from video_engine.parallel.place import runs

if TYPE_CHECKING:
    import torch

    from kernels.ledger import Source
    from video_engine.parallel.check import CheckedLayout
    from video_engine.parallel.group_choice import GroupChoice

WHERE = "video engine, ranks"
_EVIDENCE = {
    "cpu": "run on CPU between processes of one host",
    "cuda": "unverified: no machine with several devices has run it",
}


def layout_decisions(
    checked: CheckedLayout, groups: GroupChoice, device: torch.device
) -> tuple[Decision, ...]:
    """Layout, tokens and heads, the exchange with its groups, the wire, and what attends."""
    made = [_layout(checked, device)]
    if checked.layout.ulysses > 1:
        made += [
            _heads(checked, device),
            _groups(groups, device),
            _wire(checked, device),
            _attention(checked, device),
        ]
    return tuple(made)


def _layout(checked: CheckedLayout, device: torch.device) -> Decision:
    layout, needs = checked.layout, checked.needs
    weights = _size(needs.weight_bytes(layout.clip))
    reasons = [
        "rank 0 draws the noise on the CPU, holds latents and schedulers, and decides every step: "
        "the others compute what it asks for and keep nothing",
        f"every rank holds a whole transformer: {weights} in 16-bit values, "
        f"{layout.num_ranks} times in all",
        "encoders, autoencoder and writing run on rank 0 alone",
    ]
    if layout.cfg > 1:
        reasons.append(
            "the branches with and without prompt are computed at the same time; a clip without "
            "guidance leaves the second one's ranks idle"
        )
    return _decision("layout", "layout", str(layout), tuple(reasons), device, source="explicit")


def _heads(checked: CheckedLayout, device: torch.device) -> Decision:
    layout, needs = checked.layout, checked.needs
    shares = [len(run) for run in runs(needs.facts.heads, layout.ulysses)]
    sent = _size(needs.sent_bytes(layout.clip))
    reasons = [
        "tokens are split as evenly as they go, any number of them; norms over all heads, "
        "rotation, text and feed-forward are each rank's own",
        f"in a usual clip ({needs.facts.rows} tokens) {sent} leave a rank in each forward",
    ]
    if max(shares) != min(shares):
        reasons.append(
            f"{needs.facts.heads} heads do not divide by {layout.ulysses}: ranks with fewer wait "
            "for the others"
        )
    chosen = f"all-to-all by heads, {'/'.join(map(str, shares))} on each rank"
    ring = Rejection(
        candidate="keys and values in a ring",
        reasons=("sends more for any number of ranks above two", "not built in this engine"),
    )
    return _decision("collective", "exchange of attention", chosen, tuple(reasons), device, (ring,))


def _groups(groups: GroupChoice, device: torch.device) -> Decision:
    number = groups.num_groups
    chosen = f"{number} groups, overlapped" if number > 1 else "one group, not overlapped"
    reasons = (groups.reason, "the same bits for any number of groups: heads do not meet")
    source: Source = "explicit" if groups.source == "explicit" else "default"
    return _decision("collective", "head groups", chosen, reasons, device, source=source)


def _wire(checked: CheckedLayout, device: torch.device) -> Decision:
    if checked.layout.wire == "int8":
        reasons = ("asked for; blocks of 128 values and a scale: pixels change",)
        return _decision("wire", "wire of heads", "int8", reasons, device, source="explicit")
    int8 = Rejection(candidate="int8", reasons=("changes pixels: never unasked",))
    reasons = ("values travel as they are",)
    return _decision("wire", "wire of heads", "exact", reasons, device, (int8,))


def _attention(checked: CheckedLayout, device: torch.device) -> Decision:
    """What the kernels' own choice is for the usual clip; it is made anew for every shape."""
    facts = checked.needs.facts
    heads = checked.most_heads
    sizes = {
        "S": facts.rows,
        "N": facts.rows,
        "H": heads,
        "D": facts.attention_width // facts.heads,
    }
    case = Case(dtype="fp32" if device.type == "cpu" else "bf16", sizes=sizes)
    traits = device_traits(device.type, device.index or 0)
    return choose(SPEC, case, traits, where="video engine, self-attention")


def _size(size_bytes: float) -> str:
    units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    factor, unit = next((u for u in units if size_bytes >= u[0]), units[-1])
    return f"{size_bytes / factor:.3g} {unit}"


def _decision(
    kind: Literal["layout", "collective", "wire"],
    what: str,
    chosen: str,
    reasons: tuple[str, ...],
    device: torch.device,
    rejected: tuple[Rejection, ...] = (),
    source: Source = "default",
) -> Decision:
    return Decision(
        kind=kind,
        where=WHERE,
        what=what,
        asked=chosen if source == "explicit" else "auto",
        chosen=chosen,
        tier=Tier.VENDOR,
        source=source,
        reasons=reasons,
        rejected=rejected,
        evidence=_EVIDENCE.get(device.type, _EVIDENCE["cuda"]),
    )
