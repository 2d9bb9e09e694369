"""How many pages of cache to serve, how many to reserve, and how long a sequence may become."""

from bisect import bisect_right
from dataclasses import dataclass

from llm_engine.errors import InvalidConfig

DEFAULT_MAX_MODEL_LEN = 8192
CACHE_SHARE = 0.5  # of what is left: others use this machine too
GROWN_SHARE = 0.9
_FULL_SEQUENCES = 4  # that fit at once at a length the solver has chosen itself


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages of the cache in service and reserved, and the longest sequence, in tokens.

    Reserved pages cost address space; they come into service while memory is to be had. The layers
    with windows have `num_window_pages`; where all layers have them, the other two say the same.
    """

    num_pages: int
    max_model_len: int
    num_reserved: int
    num_window_pages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPages:
    """What the layers with windows ask for. Units: bytes of a page, pages.

    A sequence that answers holds `answer_pages` at most, one whose prompt is computed
    `prompt_pages`; of what full layers hold, `kept_share` stays for reuse.
    """

    page_bytes: int
    answer_pages: int
    prompt_pages: int
    kept_share: float

    def wanted(self, num_pages: int, num_seqs: int) -> int:
        """Pages that serve so many sequences and never wait, beside `num_pages` of full layers."""
        kept = int(self.kept_share * num_pages)
        return min(num_pages, num_seqs * self.answer_pages + self.prompt_pages + kept)

    def least(self, num_pages: int) -> int:
        """Pages without which the longest sequence, of `num_pages`, could not go on."""
        return min(num_pages, max(self.answer_pages, self.prompt_pages))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """What the solver is asked. Units: tokens and bytes; `fixed_bytes` is all but the cache.

    `max_model_len` and `cache_bytes` are None where they are to be chosen. The pages of the longest
    sequence take `prompt_page_bytes` each once more, out of the cache's memory. `page_bytes` are
    those of the layers that see everything, 0 where there are none; `window` those of the others.
    `first_share` of what is left is taken at once, and more, up to `GROWN_SHARE`, by need.
    """

    model_context: int
    max_num_seqs: int
    page_tokens: int
    page_bytes: int
    available_bytes: int
    fixed_bytes: int = 0
    max_model_len: int | None = None
    cache_bytes: int | None = None
    prompt_page_bytes: int = 0
    window: WindowPages | None = None
    first_share: float = CACHE_SHARE

    @property
    def left_bytes(self) -> int:
        """What the machine has beside the fixed parts."""
        return max(0, self.available_bytes - self.fixed_bytes)

    @property
    def budget_bytes(self) -> int:
        """What the cache may take: as asked, or a share of what is left."""
        return (
            int(self.left_bytes * self.first_share)
            if self.cache_bytes is None
            else self.cache_bytes
        )

    @property
    def grown_bytes(self) -> int:
        """What the cache may grow to."""
        return int(self.left_bytes * max(GROWN_SHARE, self.first_share))


def solve_capacity(question: CapacityQuestion) -> Capacity:
    """Fit the cache into its memory.

    Raises: InvalidConfig where an explicit length or size does not fit, with the largest that
        does, or where not even two tokens fit.
    """
    _check_context(question)
    _check_size(question)
    num_tokens = _longest(question, question.budget_bytes)
    wanted = question.max_model_len
    if wanted is not None and wanted > num_tokens and question.cache_bytes is None:
        # A length that was asked for may take more than the usual share.
        num_tokens = _longest(question, question.grown_bytes)
    if num_tokens < max(2, wanted or 0):
        raise InvalidConfig(_too_small(question, num_tokens))
    length = wanted or _choose_length(question, num_tokens)
    prompt_bytes = _pages(question, length) * question.prompt_page_bytes
    full_pages = question.max_num_seqs * _pages(question, length)
    budget_bytes = question.budget_bytes - prompt_bytes
    num_pages = max(_pages(question, length), min(full_pages, _fitting(question, budget_bytes)))
    num_window_pages = _window_pages(question, num_pages, budget_bytes)
    if not question.page_bytes:
        return Capacity(num_window_pages, length, num_window_pages, num_window_pages)
    reserved = num_pages
    if question.cache_bytes is None:
        grown_bytes = question.grown_bytes - prompt_bytes
        reserved = max(num_pages, min(full_pages, _fitting(question, grown_bytes)))
    return Capacity(
        num_pages=num_pages,
        max_model_len=length,
        num_reserved=reserved,
        num_window_pages=num_window_pages,
    )


def _choose_length(question: CapacityQuestion, num_tokens: int) -> int:
    usual = min(question.model_context, DEFAULT_MAX_MODEL_LEN, num_tokens)
    return max(usual, min(question.model_context, num_tokens // _FULL_SEQUENCES))


def _pages(question: CapacityQuestion, num_tokens: int) -> int:
    return -(-num_tokens // question.page_tokens)


def _fitting(question: CapacityQuestion, size_bytes: int) -> int:
    """Pages of full layers that fit, with those of the windows of as many sequences as may run."""
    window, num_seqs = question.window, question.max_num_seqs
    if window is None:
        return size_bytes // question.page_bytes

    def cost(num_pages: int) -> int:
        return num_pages * question.page_bytes + window.wanted(num_pages, num_seqs) * (
            window.page_bytes
        )

    most = num_seqs * _pages(question, question.model_context)
    return max(0, bisect_right(range(most + 1), size_bytes, key=cost) - 1)


def _window_pages(question: CapacityQuestion, num_pages: int, size_bytes: int) -> int:
    """Pages of the layers with windows beside so many of the full ones."""
    window = question.window
    if window is None:
        return 0
    wanted = window.wanted(num_pages, question.max_num_seqs)
    fitting = (size_bytes - num_pages * question.page_bytes) // window.page_bytes
    return max(window.least(num_pages), min(wanted, fitting))


def _sequence_bytes(question: CapacityQuestion, num_pages: int) -> int:
    """What a sequence of so many pages takes, with all that its pages take beside them."""
    size_bytes = num_pages * (question.page_bytes + question.prompt_page_bytes)
    if question.window is not None:
        size_bytes += question.window.least(num_pages) * question.window.page_bytes
    return size_bytes


def _longest(question: CapacityQuestion, size_bytes: int) -> int:
    """The tokens of the longest sequence that fits."""
    if question.window is None:
        page_bytes = question.page_bytes + question.prompt_page_bytes
        return size_bytes // page_bytes * question.page_tokens
    most = _pages(question, question.model_context)
    fits = bisect_right(range(most + 1), size_bytes, key=lambda n: _sequence_bytes(question, n))
    return max(0, fits - 1) * question.page_tokens


def _check_context(question: CapacityQuestion) -> None:
    wanted = question.max_model_len
    if wanted is not None and wanted > question.model_context:
        raise InvalidConfig(
            f"max_model_len is {wanted}, but the model's context is {question.model_context} "
            "tokens: lower it or leave it out"
        )


def _check_size(question: CapacityQuestion) -> None:
    asked = question.cache_bytes
    if asked is None or asked <= question.left_bytes:
        return
    raise InvalidConfig(
        f"kv_cache_bytes is {asked}, but {question.left_bytes} bytes are left: "
        f"{question.available_bytes} are available and {question.fixed_bytes} go to weights, "
        f"workspace and safety; the largest cache that fits holds "
        f"{_fitting(question, question.left_bytes) * question.page_tokens} tokens: lower "
        "kv_cache_bytes or leave it out"
    )


def _too_small(question: CapacityQuestion, num_tokens: int) -> str:
    wanted = max(2, question.max_model_len or 2)
    needed_bytes = _sequence_bytes(question, _pages(question, wanted))
    largest = min(num_tokens, question.model_context)
    if question.cache_bytes is not None:
        return (
            f"a cache of {question.cache_bytes} bytes holds {num_tokens} tokens, but {wanted} are "
            f"needed: give kv_cache_bytes at least {needed_bytes}, or max_model_len at most "
            f"{largest}"
        )
    return (
        f"{wanted} tokens need {needed_bytes} bytes of cache, but of {question.available_bytes} "
        f"available bytes {question.fixed_bytes} go to weights, workspace and safety; the largest "
        f"max_model_len that fits is {largest}: lower it, or free memory"
    )
