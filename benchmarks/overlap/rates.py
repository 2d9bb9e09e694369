"""Serial against overlapped steps at three link rates, measured and predicted."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.overlap.measure import Measurement, StageRun
from benchmarks.overlap.stages import NUM_ANSWERS, Stage
from kernels.collectives.schedules.gate import best_bound
from llm_engine.parallel.overlap_choice import CHUNKS, choose_overlap

# Wire time over computation time of the serial run. At 1 there is most to hide.
WIRE_OVER_COMPUTE = (0.5, 1.0, 2.0)
SERIAL = Stage(name="serial")

Row = dict[str, Any]


def overlapped(num_chunks: int) -> Stage:
    """The token split in so many chunks."""
    return Stage(name="overlapped", num_chunks=num_chunks, is_overlapped=True)


def measure_rates(name: str, at: Measurement, say: Callable[[str], None]) -> list[Row]:
    """One row of a prefill for each rate. Raises: WrongBits."""
    at.meet(float("inf"))
    compute_s = at.computation_s(SERIAL)
    return [_at_rate(name, at, ratio, compute_s, SERIAL, say) for ratio in WIRE_OVER_COMPUTE]


def measure_answers(name: str, at: Measurement, say: Callable[[str], None]) -> list[Row]:
    """A row of answers decoded in micro-batches, where wire and computation take as long.

    Raises: WrongBits.
    """
    of_answers, serial = at.of_answers(NUM_ANSWERS), replace(SERIAL, num_answers=NUM_ANSWERS)
    of_answers.meet(float("inf"))
    compute_s = of_answers.computation_s(serial)
    name = f"{name}, {NUM_ANSWERS} answers"
    return [_at_rate(name, of_answers, 1.0, compute_s, serial, say)]


def _at_rate(
    name: str,
    at: Measurement,
    ratio: float,
    compute_s: float,
    one_piece: Stage,
    say: Callable[[str], None],
) -> Row:
    rate = at.rate_for(ratio * compute_s)
    at.meet(rate)
    say(f"{name}: {rate / 1e6:.1f} MB/s, wire {ratio} x computation")
    cut = {k: replace(overlapped(k), num_answers=one_piece.num_answers) for k in CHUNKS}
    costs = at.step_costs([one_piece, *cut.values()])
    num_chunks, decision = choose_overlap(at.sizes.num_tokens, costs, name)
    serial, hidden = at.rounds([one_piece, cut[max(num_chunks, 2)]], say)
    at.check_bits(hidden)
    row = _row(name, at, ratio, rate, serial, hidden)
    if num_chunks == 1:
        row["row"] += ", against the gate"
    return row | {
        "gate": decision.chosen,
        "gate_reasons": list(decision.reasons),
    }


def _row(
    name: str, at: Measurement, ratio: float, rate: float, serial: StageRun, hidden: StageRun
) -> Row:
    pairs = zip(serial.seconds, hidden.seconds, strict=True)
    gain = statistics.median(s / h for s, h in pairs)
    serial_s, hidden_s = (at.predicted(run.stage).duration_s for run in (serial, hidden))
    predicted = serial_s / hidden_s
    computing = at.predicted(serial.stage).busy_s(0)
    return {
        "suite": "overlap",
        "row": f"{name}, wire {ratio:g} x compute: overlapped",
        "ours": gain,
        "unit": "x serial",
        "limit": predicted,
        "of_limit": (gain - 1) / (predicted - 1) if predicted > 1 else None,
        "rate_bytes_s": rate,
        "num_chunks": hidden.stage.num_chunks,
        "serial_s": serial.median_s,
        "overlapped_s": hidden.median_s,
        "predicted_serial_s": serial_s,
        "predicted_overlapped_s": hidden_s,
        "bound": best_bound(computing, serial_s - computing),
        "ours_of_least_times": min(serial.seconds) / min(hidden.seconds),
        "stretch_of_computation": statistics.median(hidden.stretch),
        "same_bits_as_chunks_in_turn": True,
        "same_bits_as_whole": hidden.result["digest"] == serial.result["digest"],
        "rounds": len(serial.seconds),
        "link": "in-process limit of each message",
    }
