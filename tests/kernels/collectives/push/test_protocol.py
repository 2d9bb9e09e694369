"""Flags and turns in a model of memory that delays and reorders writes: every interleaving.

A write travels: it may arrive late and after later ones. A flag arrives behind what its rank wrote
before it, which is what its release store promises. What a rank reads must be of its epoch. The
checker has to find what it is for, so protocols with one fault each must fail it.
"""

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.collectives.push.layout import NUM_TURNS

WORDS = 2


@dataclass(frozen=True)
class Protocol:
    """What ranks do in an epoch. Faults: too few turns, flags first, no flag without a payload."""

    size: int
    num_epochs: int
    num_turns: int = NUM_TURNS
    flags_first: bool = False
    skips_empty: bool = False

    def sends(self, rank, peer, epoch):
        """Lower ranks always have something to say to higher ones, which answer rarely."""
        return rank < peer or epoch % 4 == 0

    def actions(self, rank):
        """A rank's program: write, flag, wait, read."""
        found = []
        for epoch in range(1, self.num_epochs + 1):
            turn = epoch % self.num_turns
            for step in range(1, self.size):
                peer = (rank + step) % self.size
                has_payload = self.sends(rank, peer, epoch)
                writes = [("write", peer, turn, w, epoch) for w in range(WORDS * has_payload)]
                flags = [("flag", peer, epoch)] if has_payload or not self.skips_empty else []
                found += flags + writes if self.flags_first else writes + flags
            sources = [(rank - step) % self.size for step in range(1, self.size)]
            heard = [s for s in sources if self.sends(s, rank, epoch) or not self.skips_empty]
            found += [("wait", source, epoch) for source in heard]
            found += [
                ("read", source, turn, w, epoch)
                for source in sources
                for w in range(WORDS * self.sends(source, rank, epoch))
            ]
        return tuple(found)


@dataclass(frozen=True)
class World:
    """Where every rank is, what is written, and what still travels, in the order of its sending."""

    at: tuple[int, ...]
    slots: frozenset
    flags: tuple[tuple[int, ...], ...]
    travelling: tuple


class Violation(AssertionError):
    """Something was read that is not of its epoch."""


class Model:
    """The worlds that a protocol can reach."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.programs = [protocol.actions(rank) for rank in range(protocol.size)]

    def first(self):
        none = (0,) * self.protocol.size
        return World(none, frozenset(), (none,) * self.protocol.size, ())

    def moves(self, world):
        """Every rank that can go on, every write that can arrive."""
        ranks = [r for r in range(self.protocol.size) if self._can_go_on(world, r)]
        arrivals = [
            i for i, sent in enumerate(world.travelling) if self._can_arrive(world, i, sent)
        ]
        return [("go", r) for r in ranks] + [("arrive", i) for i in arrivals]

    def after(self, world, move):
        kind, which = move
        return self._arrived(world, which) if kind == "arrive" else self._gone_on(world, which)

    def is_over(self, world):
        return all(at == len(program) for at, program in zip(world.at, self.programs, strict=True))

    def _can_go_on(self, world, rank):
        if world.at[rank] == len(self.programs[rank]):
            return False
        action = self.programs[rank][world.at[rank]]
        return action[0] != "wait" or world.flags[rank][action[1]] >= action[2]

    def _can_arrive(self, world, index, sent):
        source, action = sent
        earlier = world.travelling[:index]
        if action[0] == "flag":
            return all(other != source for other, _ in earlier)
        return all(other != source or a[:4] != action[:4] for other, a in earlier)

    def _arrived(self, world, index):
        source, action = world.travelling[index]
        left = world.travelling[:index] + world.travelling[index + 1 :]
        if action[0] == "flag":
            _, peer, epoch = action
            rows = [list(row) for row in world.flags]
            rows[peer][source] = epoch
            return replace(world, flags=tuple(map(tuple, rows)), travelling=left)
        _, peer, turn, word, epoch = action
        place = (peer, source, turn, word)
        kept = frozenset(item for item in world.slots if item[0] != place)
        return replace(world, slots=kept | {(place, epoch)}, travelling=left)

    def _gone_on(self, world, rank):
        action = self.programs[rank][world.at[rank]]
        at = tuple(a + (r == rank) for r, a in enumerate(world.at))
        if action[0] in ("write", "flag"):
            return replace(world, at=at, travelling=(*world.travelling, (rank, action)))
        if action[0] == "read":
            _, source, turn, word, epoch = action
            found = dict(world.slots).get((rank, source, turn, word))
            if found != epoch:
                raise Violation(f"rank {rank} reads epoch {found} of rank {source} in {epoch}")
        return replace(world, at=at)


def explore(protocol):
    """Visit every world; raises Violation, or names a world where nobody can go on."""
    model = Model(protocol)
    seen, open_ = {model.first()}, [model.first()]
    while open_:
        world = open_.pop()
        moves = model.moves(world)
        assert moves or model.is_over(world), f"nobody can go on: {world}"
        for move in moves:
            later = model.after(world, move)
            if later not in seen:
                seen.add(later)
                open_.append(later)
    return len(seen)


def wander(protocol, generator):
    """One random way to the end."""
    model = Model(protocol)
    world = model.first()
    while moves := model.moves(world):
        world = model.after(world, generator.choice(moves))
    assert model.is_over(world), f"nobody can go on: {world}"


def test_two_ranks_read_their_epoch_in_every_interleaving():
    protocol = Protocol(size=2, num_epochs=8)
    one_way = sum(len(protocol.actions(rank)) for rank in range(2))
    assert explore(protocol) > 2 * one_way


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 5), num_epochs=st.integers(1, 7))
def test_more_ranks_do_so_on_random_ways(seed, size, num_epochs):
    wander(Protocol(size=size, num_epochs=num_epochs), random.Random(seed))


@pytest.mark.parametrize("fault", [{"num_turns": 1}, {"flags_first": True}, {"skips_empty": True}])
def test_the_checker_finds_a_fault(fault):
    with pytest.raises(Violation):
        explore(replace(Protocol(size=2, num_epochs=5), **fault))
