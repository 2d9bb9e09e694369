"""The machine's limits, measured in a process of its own with the engines' threads.

Started as `python -m benchmarks.llm.limits_child OPTIONS`; options: `threads`.
"""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.limits import measure_limits
from benchmarks.llm.child import options, serve
from benchmarks.timing import Stopwatch


def main() -> None:
    """Serve orders."""
    given = options()
    torch.set_num_threads(given["threads"])

    def measure(quick: bool) -> dict[str, Any]:
        return measure_limits(Stopwatch(torch.device("cpu")), quick=quick).as_dict()

    serve({"measure": measure})


if __name__ == "__main__":
    main()
