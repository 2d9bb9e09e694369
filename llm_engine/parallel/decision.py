"""Why a model lies over its ranks as it does, for the ledger."""

from __future__ import annotations

from dataclasses import replace

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.model_config import ModelConfig
from llm_engine.parallel.exchange_choice import CacheNeeds, exchange_decision
from llm_engine.parallel.layout import Layout, PhaseLayouts

WHERE = "llm engine, ranks"
EVIDENCE = "run on CPU between processes of one host; over several GPUs or hosts: unverified"


def layout_decisions(
    config: ModelConfig,
    layouts: PhaseLayouts,
    needs: CacheNeeds,
    *,
    asked: str,
    is_packed: bool = False,
) -> list[Decision]:
    """Layouts, the exchange of attention, embedding and head, and how experts are reached."""
    decisions = [_layout(layouts, asked, is_packed=is_packed)]
    if max(layouts.prefill.cp, layouts.decode.cp) > 1:
        before = PhaseLayouts.parse(asked)
        decisions.append(exchange_decision(config, layouts, needs, asked=before))
    if layouts.decode.dp > 1:
        decisions.append(_sequences(layouts))
    if layouts.held_tp > 1:
        decisions.append(_vocabulary(layouts))
    if config.moe is not None and layouts.decode.ep > 1:
        decisions.append(_experts(layouts))
    return decisions


def _layout(layouts: PhaseLayouts, asked: str, *, is_packed: bool) -> Decision:
    reasons = ["sums over ranks are in rank order, in float32, rounded once along each axis"]
    if layouts.is_restaged:
        reasons.append(
            "one set of weights: a rank holds its stage's layers for prompts, and of all others "
            "its own share; it decodes with views of the first and with the second"
        )
        reasons.append(
            "after each step of prompts the new keys and values go from the stages to the ranks "
            "that decode with those heads, once; answers in the same step are computed apart"
        )
    elif layouts.is_hybrid:
        reasons.append(
            f"one set of weights, in {layouts.held_tp} shares: the finer phase computes with views "
            "of them, and both find keys and values where the other left them, by head"
        )
    if layouts.is_hybrid and is_packed:
        reasons.append("slices of packed matrices begin with their panels and groups: no copies")
    elif layouts.is_hybrid:
        reasons.append("matrices stay row-major, since slices of a vendor's blocks cannot be taken")
    laid = _decision("layout", str(layouts), tuple(reasons))
    return replace(laid, asked=asked, source="explicit")


def _sequences(layouts: PhaseLayouts) -> Decision:
    dp = layouts.decode.dp
    return _decision(
        "sequences",
        f"in {dp} parts, each with a cache of its own",
        (
            "a sequence goes where least is to be computed of it and held beside it: a reused "
            "prefix draws it, the tokens of others push it away",
            f"no key lies twice, whatever the key/value heads: {dp} parts hold {dp} times the "
            "tokens; the longest sequence has to fit into one",
            "attention weights and the embedding lie on each part's ranks; rows are gathered for "
            "MLPs, experts and the head, and their sums scattered",
        ),
    )


def _vocabulary(layouts: PhaseLayouts) -> Decision:
    copies = layouts.held_tp
    whole = Rejection(
        candidate="a whole embedding on each rank",
        reasons=(
            f"{copies} copies of the largest matrix, to save one of 2 L + 1 exchanges of a step",
        ),
    )
    return _decision(
        "embedding and head",
        f"vocabulary in {copies} parts",
        ("the embedding's sum is exact, since all terms but one are zero",),
        rejected=(whole,),
    )


def _experts(layouts: PhaseLayouts) -> Decision:
    def form(layout: Layout) -> str:
        if layout.dispatch == "a2a":
            return "rows sent to the ranks of their experts and back"
        if layout.ep == 1:
            return "whole on the ranks of a stage"
        if layout.cp * layout.dp > 1:
            return "rows gathered, sums scattered"
        return "all rows on all ranks, one all-reduce"

    forms = dict.fromkeys(form(layout) for layout in (layouts.prefill, layouts.decode))
    reasons = ("as the layout says",)
    if layouts.is_restaged:
        reasons += ("of its stage's layers a rank has more experts than it decodes with",)
    return _decision("experts", "; ".join(forms), reasons)


def _decision(
    what: str, chosen: str, reasons: tuple[str, ...], rejected: tuple[Rejection, ...] = ()
) -> Decision:
    return Decision(
        kind="layout",
        where=WHERE,
        what=what,
        asked="auto",
        chosen=chosen,
        tier=Tier.VENDOR,
        source="default",
        reasons=reasons,
        rejected=rejected,
        evidence=EVIDENCE,
    )
