"""How worker processes log: to standard output, in lines that the supervisor can tell apart."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(level: str) -> None:
    """Log to standard output, which the supervisor keeps; libraries only from warnings on."""
    logging.basicConfig(level=logging.WARNING, format=_FORMAT, stream=sys.stdout)
    logging.getLogger("workers").setLevel(level.upper())
