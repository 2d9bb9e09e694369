"""A state machine over all kinds of groups: contents, hits and page counts against brute force."""

from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_engine.cache.groups import CacheGroup, CacheLayout, GroupKind
from llm_engine.cache.kv_cache import KVCache
from llm_engine.cache.node import Node, block_key
from llm_engine.sequence import Sequence

MAX_TOTAL = 40


def group(kind: GroupKind, page_tokens: int, **sizes: int) -> CacheGroup:
    return CacheGroup(name=kind, kind=kind, page_tokens=page_tokens, page_bytes=10, **sizes)


LAYOUTS = {
    "full": (group(GroupKind.FULL, 4),),
    "window": (
        group(GroupKind.FULL, 4),
        group(GroupKind.WINDOW, 2, window_tokens=7, checkpoint_tokens=12),
    ),
    "all": (
        group(GroupKind.COMPRESSED, 4),
        group(GroupKind.INDEX, 2),
        group(GroupKind.WINDOW, 2, window_tokens=5, checkpoint_tokens=8),
        group(GroupKind.STATE, 4, checkpoint_tokens=8),
    ),
    "state alone": (group(GroupKind.STATE, 4, checkpoint_tokens=4),),
}


class FakePages:
    """Implements PageStorage over dictionaries: group -> page -> {offset: prefix}."""

    def __init__(self, cache: KVCache) -> None:
        self.cache = cache
        self.pages: list[dict[int, Any]] = [{} for _ in cache.pools]
        cache.attach(self)

    def copy_out(self, group: int, pages: list[int]) -> list[Any]:
        return [dict(self.pages[group].get(page, {})) for page in pages]

    def copy_in(self, group: int, pages: list[int], contents: list[Any]) -> None:
        for page, saved in zip(pages, contents, strict=True):
            self.pages[group][page] = dict(saved)

    def copy(self, group: int, source: int, target: int) -> None:
        self.pages[group][target] = dict(self.pages[group].get(source, {}))

    def give_back(self, group: int, pages: list[int]) -> None:
        for page in pages:
            self.pages[group].pop(page, None)

    def run(self, seq: Sequence, ids: list[int], start: int) -> None:
        """Read what the tokens `ids[start:]` see, then write their rows."""
        for group, chosen in enumerate(self.cache.layout.groups):
            table = self.cache.table(seq.seq_id, group)
            if chosen.kind is GroupKind.STATE:
                if start:
                    assert self.pages[group][table[0]] == {0: prefix(seq, ids, start)}
                self.pages[group][table[0]] = {0: prefix(seq, ids, len(ids))}
                continue
            window = chosen.window_tokens if chosen.kind is GroupKind.WINDOW else start + 1
            for position in range(max(0, start - window + 1), start):
                page, offset = divmod(position, chosen.page_tokens)
                assert self.pages[group][table[page]][offset] == prefix(seq, ids, position + 1)
            for position in range(start, len(ids)):
                page, offset = divmod(position, chosen.page_tokens)
                rows = self.pages[group].setdefault(table[page], {})
                rows[offset] = prefix(seq, ids, position + 1)


def prefix(seq: Sequence, ids: list[int], length: int) -> tuple[Any, ...]:
    return (seq.adapter_id, seq.cache_salt, tuple(ids[:length]))


class CacheMachine(RuleBasedStateMachine):
    """Sequences come, run in chunks, generate, are refused drafts, and end in every way."""

    groups: tuple[CacheGroup, ...] = LAYOUTS["full"]

    @initialize(host_bytes=st.sampled_from([0, 200, 2000]), spare=st.sampled_from([0, 4, 16]))
    def start(self, host_bytes: int, spare: int) -> None:
        layout = CacheLayout(self.groups)
        need = [
            2 + spare // 4 if g.kind is GroupKind.STATE else -(-MAX_TOTAL // g.page_tokens) + spare
            for g in self.groups
        ]
        self.cache = KVCache(layout, need, host_bytes=host_bytes)
        self.cache.pins.max_blocks = 3
        self.cache.pins._pin_after = 2
        self.storage = FakePages(self.cache)
        self.running: dict[int, Sequence] = {}
        self.waiting: dict[int, Sequence] = {}
        self.num_seqs = 0

    @rule(
        head=st.integers(0, 1),
        shared=st.sampled_from([3, 7, 8, 15, 16, 20]),
        tail=st.lists(st.integers(5, 6), max_size=6),
        adapter=st.sampled_from([None, None, "x"]),
        scored=st.sampled_from([False, False, False, True]),
    )
    def arrive(self, head: int, shared: int, tail: list[int], adapter: Any, scored: bool) -> None:
        ids = [head] * (shared + 1) + tail
        seq = Sequence(self.num_seqs, ids, len(ids), MAX_TOTAL, adapter_id=adapter)
        seq.wants_prompt_logits = scored
        self.num_seqs += 1
        self.waiting[seq.seq_id] = seq

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.check_admission(self.waiting[data.draw(st.sampled_from(sorted(self.waiting)))])

    @rule(
        head=st.integers(0, 1),
        shared=st.sampled_from([3, 7, 8, 15, 16, 20, 31]),
        tail=st.lists(st.integers(5, 6), max_size=4),
        chunk=st.integers(3, 16),
        answer=st.integers(0, 6),
    )
    def serve(self, head: int, shared: int, tail: list[int], chunk: int, answer: int) -> None:
        """A request from its arrival to its end, where nothing stands in its way."""
        self.arrive(head, shared, tail, None, False)
        seq = self.waiting[self.num_seqs - 1]
        self.check_admission(seq)
        while seq.seq_id in self.running:
            before = len(seq.token_ids), seq.num_computed
            self.advance(seq, chunk, 0, 1)
            is_stuck = (len(seq.token_ids), seq.num_computed) == before
            if is_stuck or seq.num_generated > answer or seq.num_uncomputed == 0:
                del self.running[seq.seq_id]
                self.cache.release(seq)

    def check_admission(self, seq: Sequence) -> None:
        is_swapped = self.cache._swaps.has(seq.seq_id)
        expected = seq.num_computed if is_swapped else self.brute_force_prefix(seq)
        branch = 0 if is_swapped else self.brute_force_branch(seq, expected)
        has_room = self.cache.num_available(0) > -(-len(seq.token_ids) // 4)
        answer = self.cache.admit(seq)
        if answer.leader is not None:
            assert answer.leader in self.running
            assert self.running[answer.leader].num_computed < answer.leader_tokens
        if answer.is_admitted:
            # Where pages are few, the branch itself may have to make room.
            assert answer.num_tokens in {expected + branch, expected if not has_room else -1}
            seq.num_computed = answer.num_tokens
            seq.has_run = True
            del self.waiting[seq.seq_id]
            self.running[seq.seq_id] = seq
        elif answer.leader is None and not self.running:
            raise AssertionError("an idle cache refuses a sequence that fits")

    @precondition(lambda self: self.running)
    @rule(data=st.data(), wanted=st.integers(1, 16), num_drafts=st.integers(0, 3))
    def compute(self, data: st.DataObject, wanted: int, num_drafts: int) -> None:
        seq = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        self.advance(seq, wanted, num_drafts, data.draw(st.integers(0, 1)))

    def advance(self, seq: Sequence, wanted: int, num_drafts: int, token: int) -> None:
        known = len(seq.token_ids)
        end = min(known, seq.num_computed + wanted)
        border = self.cache.layout.next_state_border(seq.num_computed)
        end = end if border is None else min(end, border)
        is_last = end == known
        drafts = min(num_drafts, MAX_TOTAL - known - 1) if is_last else 0
        if self.cache.layout.has_state:
            drafts = 0
        if end == seq.num_computed or not self.cache.can_grow(seq.seq_id, end + max(0, drafts)):
            return
        self.cache.grow(seq.seq_id, end + max(0, drafts))
        run = seq.token_ids[:end] + [9] * max(0, drafts)
        self.storage.run(seq, run, seq.num_computed)
        seq.num_computed = end
        if is_last and known < MAX_TOTAL:
            seq.token_ids.append(token)
        self.cache.commit(seq)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        seq = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        seq.has_failed = failed
        self.cache.release(seq)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), by_copy=st.booleans())
    def preempt(self, data: st.DataObject, by_copy: bool) -> None:
        seq = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        if not (by_copy and self.cache.swap_out(seq)):
            self.cache.release(seq)
            seq.num_computed = 0
        self.waiting[seq.seq_id] = seq

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def abort_waiting(self, data: st.DataObject) -> None:
        seq = self.waiting.pop(data.draw(st.sampled_from(sorted(self.waiting))))
        self.cache.release(seq)

    @rule(share=st.floats(0, 1))
    def resize(self, share: float) -> None:
        blocks = -(-MAX_TOTAL // self.cache.layout.block_tokens)
        growing = [g for g, chosen in enumerate(self.groups) if chosen.is_growing]
        if not growing:
            return
        most = min(
            self.cache.pools[g].num_pages // self.cache.layout.pages_per_block(g) for g in growing
        )
        now = self.cache.resize(blocks + int(share * (most - blocks)))
        assert now >= blocks

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.cache.give_back_free()

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        for pool in self.cache.pools:
            assert pool.num_free + pool.num_used + pool.num_cached == pool.num_usable
            if not self.running:
                assert pool.num_used == 0
        assert self.cache.host.used_bytes <= self.cache.host.capacity_bytes

    def brute_force_prefix(self, seq: Sequence) -> int:
        """The longest prefix, by definition: position by position, for every group."""
        block, layout = self.cache.layout.block_tokens, self.cache.layout
        if seq.wants_prompt_logits:
            return 0
        node = self.cache.tree.roots.get((seq.adapter_id, seq.cache_salt))
        path: list[Node] = []
        while node is not None and len(path) < (len(seq.token_ids) - 1) // block:
            node = node.children.get(block_key(seq.token_ids, len(path), block))
            if node is None or not node.is_ready:
                break
            path.append(node)
        for length in range(len(path) * block, 0, -block):
            if all(self.sees(g, path, length) for g in range(len(layout.groups))):
                return length
        return 0

    def brute_force_branch(self, seq: Sequence, length: int) -> int:
        """The most of the next tokens that any block behind `length` tokens begins with."""
        block = self.cache.layout.block_tokens
        if not length or any(group.kind is not GroupKind.FULL for group in self.groups):
            return 0
        node = self.cache.tree.roots[(seq.adapter_id, seq.cache_salt)]
        for index in range(length // block):
            node = node.children[block_key(seq.token_ids, index, block)]
        rest = seq.token_ids[length:-1][:block]
        here = [child for child in node.children.values() if child.is_ready and child.is_on_device]
        keys = [list(array("I", child.key)) for child in here]
        return max(
            (n for n in range(1, len(rest) + 1) for k in keys if k[:n] == rest[:n]), default=0
        )

    def sees(self, g: int, path: list[Node], length: int) -> bool:
        chosen, block = self.groups[g], self.cache.layout.block_tokens
        if chosen.kind is GroupKind.STATE:
            return self.has(path[length // block - 1], g)
        first = length - chosen.window_tokens + 1 if chosen.kind is GroupKind.WINDOW else 0
        return all(self.has(path[p // block], g) for p in range(max(0, first), length))

    def has(self, node: Node, g: int) -> bool:
        if node.host is not None:
            return g in self.cache.host.groups(node.host)
        return node.pages[g] is not None


@pytest.mark.parametrize("name", LAYOUTS)
def test_cache_machine(name: str) -> None:
    machine = type("Machine", (CacheMachine,), {"groups": LAYOUTS[name]}).TestCase
    machine.settings = settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    machine().runTest()
