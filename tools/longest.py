"""Print the longest files and functions of the product, so that they are seen. Fails on nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("kernels", "llm_engine", "video_engine", "workers", "service", "benchmarks", "tests")
SHOWN = 8


def sources() -> Iterator[Path]:
    """Every Python file of the rooms."""
    for room in ROOMS:
        yield from sorted((ROOT / room).rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[int, str]]:
    """(lines, place) of every function in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield lines, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def main() -> None:
    """Print the two lists."""
    paths = list(sources())
    by_lines = [(len(p.read_text().splitlines()), str(p.relative_to(ROOT))) for p in paths]
    by_function = [item for path in paths for item in functions(path)]
    for title, items in (("files", by_lines), ("functions", by_function)):
        print(f"Longest {title}:")
        for lines, place in sorted(items, reverse=True)[:SHOWN]:
            print(f"  {lines:5d}  {place}")


if __name__ == "__main__":
    main()
