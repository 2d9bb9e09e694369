"""How ranks that hold rows attend to each other's keys: the forms, what each costs, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.errors import InvalidConfig
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.layout import Exchange, Layout, PhaseLayouts
from llm_engine.parallel.shares import uneven_heads

_WHAT = {
    "heads": "all-to-all by heads",
    "gather": "keys and values gathered",
    "ring": "keys and values dealt out by position, in a ring",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheNeeds:
    """What the cache of a rank has to hold. Units: tokens; bytes.

    `context` is the longest sequence; `cache_bytes` None where the cache takes what is there.
    """

    page_size: int
    item_bytes: int
    context: int
    cache_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Form:
    """What one way of exchanging costs on a rank.

    `cached_bytes` of all layers a token; `wire_bytes` received in one layer for a row of the step.
    """

    cached_bytes: int
    wire_bytes: float


def forms(config: ModelConfig, layout: Layout, item_bytes: int) -> dict[Exchange, Form]:
    """The three ways, for a rank of a layout."""
    cp = layout.cp
    kv, kv_by_heads = -(-config.num_kv_heads // layout.tp), -(-config.num_kv_heads // layout.unit)
    exchanged = config.num_heads / layout.unit + kv_by_heads
    head = config.head_dim * item_bytes
    layers = -(-config.num_layers // layout.pp)
    other = (cp - 1) / cp
    return {
        # Queries and keys of the own heads arrive, outputs of the others come back.
        "heads": Form(2 * kv_by_heads * head * layers, 2 * exchanged * head * other),
        "gather": Form(2 * kv * head * layers, 2 * kv * head * other),
        # Of the step's own rows; those of the past, too, go around where that is less than queries.
        "ring": Form(2 * kv * head * layers // cp, 2 * kv * head * other),
    }


def settled(
    config: ModelConfig, layouts: PhaseLayouts, needs: CacheNeeds | None = None
) -> PhaseLayouts:
    """The layouts with a way of exchanging in place of "auto"; all ranks settle alike."""
    if _with_rows(layouts).cp == 1:
        return layouts
    exchange, _ = _choice(config, layouts, needs)

    def settle(layout: Layout) -> Layout:
        is_open = layout.cp > 1 and layout.exchange == "auto"
        return replace(layout, exchange=exchange) if is_open else layout

    return PhaseLayouts(settle(layouts.prefill), settle(layouts.decode))


def exchange_decision(
    config: ModelConfig, layouts: PhaseLayouts, needs: CacheNeeds, *, asked: PhaseLayouts
) -> Decision:
    """Why these settled layouts exchange as they do; `asked` are they before."""
    layout = _with_rows(layouts)
    first = _with_rows(asked)
    chosen = layout.exchange
    _, reasons = _choice(config, asked, needs)
    if first.exchange != "auto":
        reasons = ("asked for in the layout",)
    costs = forms(config, layout, needs.item_bytes)
    if chosen == "ring":
        reasons += (
            "in each step either keys go around or queries do, whichever is fewer bytes: keys for "
            "many rows, queries for few rows over a long past",
            _kept_keys(costs["gather"], needs),
        )
    return Decision(
        kind="layout",
        where="llm engine, ranks",
        what="attention of split rows",
        asked=first.exchange,
        chosen=_WHAT[chosen],
        tier=Tier.VENDOR,
        source="default" if first.exchange == "auto" else "explicit",
        reasons=(*reasons, _cost(costs[chosen])),
        rejected=tuple(
            Rejection(candidate=_WHAT[form], reasons=(_cost(cost),))
            for form, cost in costs.items()
            if form != chosen
        ),
        evidence="run on CPU between processes of one host; over several GPUs or hosts: unverified",
    )


def check_page(layouts: PhaseLayouts, page_size: int) -> None:
    """Raises: InvalidConfig where a page has no equal part for every rank of a ring."""
    parts = cache_parts(layouts)
    if page_size % parts:
        raise InvalidConfig(
            f"layout {layouts}: page_size is {page_size}, but {parts} ranks of a ring have equal "
            f"parts of a page: take a multiple of {parts}, as {-(-page_size // parts) * parts}"
        )


def cache_parts(layouts: PhaseLayouts) -> int:
    """Over how many ranks the tokens of a page are dealt out."""
    return layouts.prefill.cp if layouts.prefill.exchange == "ring" else 1


def _choice(
    config: ModelConfig, layouts: PhaseLayouts, needs: CacheNeeds | None
) -> tuple[Exchange, tuple[str, ...]]:
    layout = _with_rows(layouts)
    heads, unit = config.num_kv_heads, layout.unit
    if layouts.is_hybrid:
        return "heads", ("the other phase finds the same keys, by head, in the same cache",)
    held = f"{heads} key/value heads over {unit} ranks"
    by_heads = replace(layout, exchange="heads")
    is_even = unit <= config.num_heads and uneven_heads(config, by_heads) is None
    if heads >= unit and is_even:
        balanced = "attention is balanced whatever the lengths, and decoding asks no other rank"
        return "heads", (f"{held}: each rank caches its own, once", balanced)
    reason = f"{held}: by heads, each would lie on several ranks"
    if not is_even:
        queries = f"{config.num_heads} query heads over {held}"
        reason = f"{queries}: by heads, a rank would have none, or too many of some"
    if needs is None or needs.cache_bytes is None:
        return "gather", (reason, "decoding asks no other rank, and nothing bounds the cache")
    needed = needs.context * forms(config, layout, needs.item_bytes)["gather"].cached_bytes
    room = f"{needed} bytes of {needs.context} gathered tokens, of {needs.cache_bytes} to have"
    if needed <= needs.cache_bytes:
        return "gather", (reason, f"the longest sequence fits: {room}")
    if needs.page_size % layout.cp:
        page = f"page_size {needs.page_size} has no equal parts for {layout.cp} ranks of a ring"
        return "gather", (reason, page)
    return "ring", (reason, f"the longest sequence does not fit on every rank: {room}")


def _kept_keys(gather: Form, needs: CacheNeeds) -> str:
    """Why a ring does not keep the keys that came with earlier chunks: that is what gather does."""
    needed = needs.context * gather.cached_bytes
    fits = "which does not fit"
    if needs.cache_bytes is None or needed <= needs.cache_bytes:
        fits = "which fits here: leave ring out to have it"
    return (
        "keys of the past go around again with each chunk of a prompt: to keep those that came is "
        f"to gather them, {needed} bytes of the longest sequence on each rank, {fits}"
    )


def _with_rows(layouts: PhaseLayouts) -> Layout:
    """The layout whose ranks hold rows."""
    return layouts.prefill if layouts.prefill.cp > 1 else layouts.decode


def _cost(form: Form) -> str:
    return (
        f"{form.cached_bytes} bytes a token on each rank, {form.wire_bytes:.0f} bytes received for "
        "a row in a layer"
    )
