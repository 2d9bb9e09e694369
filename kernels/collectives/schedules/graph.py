"""Work on streams: nodes in the order of each stream, with what else they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Kind = Literal["compute", "collective", "send", "receive"]
Place = tuple[int, str]  # rank and name of the node


class ScheduleError(ValueError):
    """A schedule that could not run: what it names does not exist, or waits in a circle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One piece of work of one rank.

    `after` names nodes of the same rank that must be done first, besides the one before it on its
    stream. A collective of all ranks has the same name on each. A send and its receive share
    `tag`; `peer` is the other rank. `resource` is what transfers share: two on the same resource
    of a rank do not overlap.
    Units: seconds of computation; bytes of a transfer.
    """

    name: str
    rank: int
    stream: str
    kind: Kind
    duration_s: float = 0.0
    size_bytes: int = 0
    operation: str = ""
    after: tuple[str, ...] = ()
    peer: int = -1
    tag: str = ""
    resource: str = "link"

    @property
    def place(self) -> Place:
        """The node's key."""
        return self.rank, self.name


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The nodes of all ranks, each rank's streams in their order.

    Invariants: names are unique on a rank; what is waited for exists; collectives name all ranks
    of the schedule and come in one order on all of them; a send has its receive; nothing waits
    for itself.
    Raises: ScheduleError saying which node breaks which of these.
    """

    name: str
    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        if len(self.by_place) != len(self.nodes):
            raise ScheduleError(f"{self.name}: two nodes of a rank share a name")
        for node in self.nodes:
            missing = [name for name in node.after if (node.rank, name) not in self.by_place]
            if missing:
                raise ScheduleError(f"{self.name}: {node.name} waits for {missing}: no such node")
        self._check_collectives()
        self._check_messages()
        self.order  # noqa: B018 - raises where nodes wait in a circle

    @cached_property
    def by_place(self) -> Mapping[Place, Node]:
        """Nodes by rank and name."""
        return {node.place: node for node in self.nodes}

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have work."""
        return tuple(sorted({node.rank for node in self.nodes}))

    def streams(self, rank: int) -> dict[str, list[Node]]:
        """A rank's streams, each in its order."""
        streams: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.rank == rank:
                streams.setdefault(node.stream, []).append(node)
        return streams

    @cached_property
    def before(self) -> Mapping[Place, tuple[Place, ...]]:
        """What each node waits for: named nodes, its stream, and the other side of a transfer.

        A collective waits for what its counterparts wait for, since none begins before all can;
        a receive for its send.
        """
        own = {node.place: self._own_before(node) for node in self.nodes}
        waits = dict(own)
        for members in self.meetings.values():
            joint = tuple(dict.fromkeys(place for m in members for place in own[m.place]))
            waits |= {m.place: joint for m in members}
        for receive, send in self._messages.items():
            waits[receive] = (*own[receive], send)
        return waits

    @cached_property
    def meetings(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes of each collective, one a rank."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.kind == "collective":
                found.setdefault(node.name, []).append(node)
        return {name: tuple(members) for name, members in found.items()}

    @cached_property
    def order(self) -> tuple[Place, ...]:
        """Every node after all that it waits for.

        Raises: ScheduleError where there is no such order.
        """
        waits = {place: set(before) for place, before in self.before.items()}
        followers: dict[Place, list[Place]] = {}
        for place, before in waits.items():
            for earlier in before:
                followers.setdefault(earlier, []).append(place)
        ready = [node.place for node in self.nodes if not waits[node.place]]
        done: list[Place] = []
        for place in ready:
            done.append(place)
            for follower in followers.get(place, []):
                waits[follower].discard(place)
                if not waits[follower]:
                    ready.append(follower)
        if len(done) < len(self.nodes):
            stuck = sorted(set(self.by_place) - set(done))
            raise ScheduleError(f"{self.name}: nodes wait in a circle: {stuck[:6]}")
        return tuple(done)

    def _own_before(self, node: Node) -> tuple[Place, ...]:
        named = tuple((node.rank, name) for name in node.after)
        previous = self._previous.get(node.place)
        return (*named, previous) if previous else named

    @cached_property
    def _previous(self) -> Mapping[Place, Place]:
        last: dict[tuple[int, str], Place] = {}
        found: dict[Place, Place] = {}
        for node in self.nodes:
            key = node.rank, node.stream
            if key in last:
                found[node.place] = last[key]
            last[key] = node.place
        return found

    @cached_property
    def _messages(self) -> Mapping[Place, Place]:
        sends = {(n.rank, n.peer, n.tag): n.place for n in self.nodes if n.kind == "send"}
        receives = (n for n in self.nodes if n.kind == "receive")
        pairs = {n.place: sends.get((n.peer, n.rank, n.tag)) for n in receives}
        return {receive: send for receive, send in pairs.items() if send is not None}

    def _check_messages(self) -> None:
        kinds = [node.kind for node in self.nodes]
        if not kinds.count("send") == kinds.count("receive") == len(self._messages):
            raise ScheduleError(f"{self.name}: a send or a receive has no counterpart")

    def _check_collectives(self) -> None:
        for name, members in self.meetings.items():
            if tuple(sorted(m.rank for m in members)) != self.ranks:
                raise ScheduleError(f"{self.name}: {name} is not on every rank of {self.ranks}")
        orders = {
            tuple(n.name for n in self.nodes if n.kind == "collective" and n.rank == rank)
            for rank in self.ranks
        }
        if len(orders) > 1:
            raise ScheduleError(f"{self.name}: ranks meet in different orders")


def on_all_ranks(name: str, size: int, nodes: Iterable[Node]) -> Schedule:
    """The same work on every rank: nodes of one rank, copied."""
    own = tuple(nodes)
    copies = tuple(replace(node, rank=rank) for rank in range(size) for node in own)
    return Schedule(name=name, nodes=copies)
