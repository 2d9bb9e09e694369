"""No rule orders devices by a number: "Blackwell" is not one thing (sm_100 and sm_120)."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("kernels", "llm_engine", "video_engine", "workers", "service")
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
OPERATORS = {"lt", "le", "gt", "ge", "__lt__", "__le__", "__gt__", "__ge__"}
SPEAKS_OF_DEVICES = re.compile(r"capability|compute_cap|device_properties|sm_version", re.I)


def is_capability(name, *, is_device_file):
    """Whether an identifier speaks of a device's capability number or architecture."""
    tokens = [token.lower() for token in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", name)]
    joined = "_".join(tokens)
    if {"capability", "capabilities", "arch", "archs", "cc"} & set(tokens):
        return True
    if re.search(r"(^|_)(compute_cap|sm_version|sm_arch|gpu_gen|gfx_version)", joined):
        return True
    if joined in {"sm", "sm_number", "gcn_arch_name"}:
        return True
    return is_device_file and bool({"major", "minor"} & set(tokens))


def names_in(node):
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant):
            yield str(part.slice.value)


def ordered_sides(node):
    """The operands of the ordered comparisons that `node` itself makes."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        return [x for left, op, right in pairs if isinstance(op, ORDERED) for x in (left, right)]
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return [node.func, *node.args] if name in OPERATORS else []
    return []


def ordered_capabilities(source):
    """Line and text of every ordered comparison that mentions a capability."""
    is_device_file = bool(SPEAKS_OF_DEVICES.search(source))
    return [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare | ast.Call)
        and any(
            is_capability(name, is_device_file=is_device_file)
            for side in ordered_sides(node)
            for name in names_in(side)
        )
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_orders_devices_by_a_number(room):
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, text in ordered_capabilities(file.read_text("utf-8"))
    ]
    assert not found, "ask for a trait (kernels.hardware.traits) instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "ok = torch.cuda.get_device_capability() >= (9, 0)",
        "ok = capability[0] > 8",
        "ok = 80 <= compute_cap < 90",
        "ok = device.sm_version >= 100",
        "ok = (9, 0) <= self.device_capability",
        "ok = target.arch >= 90",
        "ok = p['capability'] < (9, 0)",
        "p = torch.cuda.get_device_properties(0)\nok = p.major >= 10",
        "major, minor = get_device_capability()\nok = major > 9 or minor < 1",
        "ok = operator.ge(capability, (9, 0))",
        "ok = capability.__ge__((9, 0))",
        "ok = x == 1 and not (gpu_arch < 90)",
        "ok = computeCapability >= 8",
        "ok = cc >= 80",
    ],
)
def test_the_check_finds_a_planted_comparison(source):
    assert ordered_capabilities(source)


@pytest.mark.parametrize(
    "source",
    [
        "ok = capability == (9, 0)",
        "ok = family in {'sm_90', 'sm_100'}",
        "ok = smem_bytes <= traits.max_smem_bytes",
        "ok = redis_version.major >= 7",
        "ok = search_depth > 3",
        "ok = num_warps <= num_warps_cap",
        "ok = arch_name in names and count > 0",
        "ok = architecture_rows > 2",
    ],
)
def test_the_check_leaves_other_comparisons_alone(source):
    assert not ordered_capabilities(source)
