"""Which models can be divided, and how: plain facts, classes imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """`rows` names the class of its `RowModel`; `branches` is how many a step with guidance has."""

    rows: str
    branches: int

    def row_model(self) -> Any:  # noqa: ANN401  a class with RowModel's methods
        """The class."""
        module_name, class_name = self.rows.split(":")
        return getattr(import_module(module_name), class_name)


_WAN = Family(rows="video_engine.parallel.wan_rows:WanRows", branches=2)
# By built-in name or pipeline class, as in `video_engine.models.registry`.
FAMILIES: Mapping[str, Family] = {
    "motion-small": _WAN,
    "WanImageToVideoPipeline": _WAN,
    "MiniMaxH3ModularPipeline": Family(rows="video_engine.parallel.h3_rows:H3Rows", branches=1),
}
