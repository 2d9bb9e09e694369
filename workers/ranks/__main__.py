"""`python -m workers.ranks ORDER`: one follower of a language engine; started by its leader."""

from __future__ import annotations

import sys

from workers.logs import configure_logging
from workers.ranks.child import run_rank
from workers.ranks.language import load_language
from workers.ranks.order import RankOrder


def main(arguments: list[str]) -> int:
    """Carry out the order; the exit code."""
    if len(arguments) != 1:
        print("usage: python -m workers.ranks ORDER (as its leader writes it)", file=sys.stderr)
        return 2
    configure_logging("warning")
    return run_rank(RankOrder.from_json(arguments[0]), load_language)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
