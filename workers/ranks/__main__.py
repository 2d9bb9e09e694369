"""`python -m workers.ranks [ENGINE] ORDER`: one follower of an engine; started by its leader."""

from __future__ import annotations

import sys

from workers.logs import configure_logging
from workers.ranks.child import Load, run_rank
from workers.ranks.order import RankOrder

_USAGE = "usage: python -m workers.ranks [language|video] ORDER (as its leader writes it)"


def main(arguments: list[str]) -> int:
    """Carry out the order; the exit code."""
    engine = arguments[0] if len(arguments) == 2 else "language"
    if len(arguments) not in (1, 2) or engine not in ("language", "video"):
        print(_USAGE, file=sys.stderr)
        return 2
    configure_logging("warning")
    return run_rank(RankOrder.from_json(arguments[-1]), _load_of(engine))


def _load_of(engine: str) -> Load:
    """Imported when asked for: a follower needs one engine's libraries."""
    if engine == "video":
        from workers.ranks.video import load_video

        return load_video
    from workers.ranks.language import load_language

    return load_language


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
