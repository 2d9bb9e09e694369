"""Steps that only decode, replayed from recorded launches.

A step of one token a sequence launches a dozen kernels a layer, each of a few microseconds: issued
one by one, the processor takes longer to ask than the device to compute. A graph asks once. It
reads the step's tokens, slots and page tables from memory that stays in its place.
"""

# B rows of a graph, N rows of a step, M pages of a row of the table, V vocabulary.

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kernels.ops.rotary_insert import Insertion
from llm_engine.cache.sequence_cache import SequenceCache
from llm_engine.cache.storage import PageStorage
from llm_engine.layers.attention import PagedAttention, PagedCache
from llm_engine.layers.bound_ops import BoundOps
from llm_engine.layers.paged_rows import PagedRows
from llm_engine.layers.step import Step
from llm_engine.models.base import CausalModel
from llm_engine.runner import StepRunner
from llm_engine.sequence import Chunk

Compute = Callable[[], torch.Tensor]
_NUM_COLUMNS = 4  # token, position, slot, length: before the table
# What a row beside the step's own is: it reads page 0, and stores nowhere.
_IDLE = (0, 0, -1, 1)


class Recorder(Protocol):
    """Records what a function launches."""

    def __call__(self, compute: Compute, /) -> Compute:
        """A function that launches the same again, into the same result."""
        ...


class GraphRecorder:
    """Records CUDA or HIP graphs that share their memory: one alone is replayed at a time."""

    def __init__(self, place: torch.device) -> None:
        """Graphs of one device."""
        self._place = place
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute, /) -> Compute:
        """See `Recorder`. A first run, outside the graph, compiles kernels and opens libraries."""
        aside = torch.cuda.Stream(self._place)
        aside.wait_stream(torch.cuda.current_stream(self._place))
        with torch.cuda.stream(aside):
            compute()
        torch.cuda.current_stream(self._place).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = compute()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay


def graph_sizes(num_seqs: int) -> tuple[int, ...]:
    """Rows of the graphs: 1, 2, 4, then every eighth up to `num_seqs`, and that itself."""
    sizes = {1, 2, 4, *range(8, num_seqs, 8), num_seqs}
    return tuple(sorted(size for size in sizes if size <= num_seqs))


class DecodeGraphs:
    """A runner whose steps of one token a sequence are replayed; others run as they come.

    Invariant: a step's logits hold until the next step.
    """

    def __init__(
        self,
        runner: StepRunner,
        model: CausalModel,
        ops: BoundOps,
        cache: PagedCache,
        pool: SequenceCache,
        *,
        num_seqs: int,
        max_pages: int,
        record: Recorder,
    ) -> None:
        """Record a graph of every size, for sequences of at most `max_pages` pages."""
        self._runner = runner
        self._model, self._ops, self._cache, self._pool = model, ops, cache, pool
        self._inputs = _StepInputs(num_seqs, max_pages, model.rotary.place)
        with torch.inference_mode():
            self._graphs = {
                size: record(lambda size=size: self._logits(size)) for size in graph_sizes(num_seqs)
            }

    @property
    def storages(self) -> Sequence[PageStorage]:
        """See `StepRunner`."""
        return self._runner.storages

    @torch.inference_mode()
    def run(self, chunks: Sequence[Chunk]) -> torch.Tensor | None:
        """See `StepRunner`."""
        if not all(_only_decodes(chunk) for chunk in chunks) or len(chunks) > max(self._graphs):
            return self._runner.run(chunks)
        size = next(size for size in self._graphs if size >= len(chunks))
        self._inputs.fill(chunks, self._pool, self._cache.page_size, size)
        return self._graphs[size]()[: len(chunks)]

    def flush(self) -> None:
        """See `StepRunner`."""
        self._runner.flush()

    def rejoin(self) -> None:
        """See `StepRunner`."""
        self._runner.rejoin()

    def _logits(self, size: int) -> torch.Tensor:
        """Logits (B, V) of the step that the inputs hold."""
        inputs = self._inputs
        rows = PagedRows(
            insertion=Insertion(slots=inputs.slots[:size]),
            num_decodes=size,
            decode_pages=(inputs.lengths[:size], inputs.table[:size]),
        )
        rotation = self._model.rotary.rotation(inputs.positions[:size])
        attend = PagedAttention(self._cache, rows, self._ops, rotation, sinks=self._model.sinks)
        hidden_BC = self._model.hidden(Step(inputs.token_ids[:size], attend), self._ops)
        return self._model.logits(hidden_BC, self._ops)


class _StepInputs:
    """A step's numbers on the device, where graphs read them, and on the host, where they are made.

    All lie one behind the other, so that one copy brings them.
    """

    def __init__(self, num_seqs: int, max_pages: int, place: torch.device) -> None:
        numbers = num_seqs * (_NUM_COLUMNS + max_pages)
        is_pinned = place.type != "cpu" and torch.cuda.is_available()
        self._host = torch.zeros(numbers, dtype=torch.int32, pin_memory=is_pinned)
        self._device = torch.zeros(numbers, dtype=torch.int32, device=place)
        self._host_columns = self._columns(self._host, num_seqs)
        self.token_ids, self.positions, self.slots, self.lengths, self.table = self._columns(
            self._device, num_seqs
        )
        self._fill_idle(0, num_seqs)
        self._device.copy_(self._host)

    @staticmethod
    def _columns(numbers: torch.Tensor, num_seqs: int) -> list[torch.Tensor]:
        columns = [*numbers[: _NUM_COLUMNS * num_seqs].view(_NUM_COLUMNS, num_seqs)]
        return [*columns, numbers[_NUM_COLUMNS * num_seqs :].view(num_seqs, -1)]

    def fill(self, chunks: Sequence[Chunk], pool: SequenceCache, page_size: int, size: int) -> None:
        """Bring a step's rows to the device, and idle ones up to `size`."""
        token_ids, positions, slots, lengths, table = (c.numpy() for c in self._host_columns)
        for row, chunk in enumerate(chunks):
            pages, position = pool.table(chunk.seq.seq_id), chunk.start
            num_pages = position // page_size + 1
            token_ids[row], positions[row] = chunk.token_ids[0], position
            slots[row] = pages[num_pages - 1] * page_size + position % page_size
            lengths[row] = position + 1
            table[row, :num_pages] = pages[:num_pages]
        self._fill_idle(len(chunks), size)
        # The copy is waited for: the next step writes the host's numbers anew.
        self._device.copy_(self._host)

    def _fill_idle(self, first: int, last: int) -> None:
        for column, value in zip(self._host_columns[:_NUM_COLUMNS], _IDLE, strict=True):
            column[first:last] = value
        self._host_columns[-1][first:last] = 0


def _only_decodes(chunk: Chunk) -> bool:
    """Whether a chunk is one token with logits, computed by the base model alone."""
    return chunk.num_tokens == 1 and chunk.num_logits == 1 and chunk.seq.adapter_id is None
