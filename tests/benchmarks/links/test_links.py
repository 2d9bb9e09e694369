"""The slow link: as slow as it was asked to be, gone afterwards, and replaced where not allowed."""

import subprocess

import pytest

from benchmarks.collectives.crew import RankFailed, ranks_at
from benchmarks.links.namespaces import NoNamespaces, kernel_link
from benchmarks.links.place import Place, slow_place
from benchmarks.suites.links import plain_sockets

RATE_BYTES_S, NUM_BYTES = 20e6, 4 << 20


@pytest.fixture
def place():
    """The kernel's link."""
    try:
        with kernel_link() as link:
            yield Place(kind="kernel", note="test", link=link)
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_plain_sockets_reach_the_rate_and_no_more(place):
    with ranks_at(place, ("shm",), RATE_BYTES_S) as crew:
        raw = crew("raw_link", **plain_sockets(place, NUM_BYTES), num_rounds=2)[0]
    reached = NUM_BYTES / min(raw["both_ways_s"])
    assert 0.5 * RATE_BYTES_S < reached < 1.1 * RATE_BYTES_S
    assert min(raw["round_trip_s"]) < 0.05


def test_the_namespaces_end_with_the_block():
    try:
        with kernel_link() as link:
            pids = link.pids
            devices = subprocess.run(
                [*link.prefix(0), "ip", "-o", "link"], capture_output=True, text=True, check=True
            )
            assert "lwv0" in devices.stdout
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert not any(subprocess.run(["kill", "-0", str(pid)], check=False).returncode == 0
                   for pid in pids)  # fmt: skip


def test_without_the_tools_the_link_is_inside_the_processes_and_says_why(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with slow_place() as found:
        assert found.kind == "in-process"
        assert "not installed: unshare, nsenter, ip, tc" in found.note
        assert found.limit(5e6) == 5e6
        assert found.prefix(0) == []


def test_a_rank_that_fails_is_named():
    place = Place(kind="in-process", note="test")
    with ranks_at(place, ("shm",)) as crew, pytest.raises(RankFailed, match="rank 0, race"):
        crew("race", op="all_reduce", dtype="bfloat16", size_bytes=64, ways=[], num_rounds="x")
