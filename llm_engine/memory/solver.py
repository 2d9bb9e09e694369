"""How many pages of cache to serve, how many to reserve, and how long a sequence may become."""

from dataclasses import dataclass

from llm_engine.errors import InvalidConfig

DEFAULT_MAX_MODEL_LEN = 8192
CACHE_SHARE = 0.5  # of what is left: others use this machine too
GROWN_SHARE = 0.9
_FULL_SEQUENCES = 4  # that fit at once at a length the solver has chosen itself


@dataclass(frozen=True, slots=True)
class Capacity:
    """Pages of the cache in service and reserved, and the longest sequence, in tokens.

    Reserved pages cost address space; they come into service while memory is to be had.
    """

    num_pages: int
    max_model_len: int
    num_reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """What the solver is asked. Units: tokens and bytes; `fixed_bytes` is all but the cache.

    `max_model_len` and `cache_bytes` are None where they are to be chosen. The pages of the longest
    sequence take `prompt_page_bytes` each once more, out of the cache's memory.
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

    @property
    def left_bytes(self) -> int:
        """What the machine has beside the fixed parts."""
        return max(0, self.available_bytes - self.fixed_bytes)

    @property
    def budget_bytes(self) -> int:
        """What the cache may take: as asked, or a share of what is left."""
        return int(self.left_bytes * CACHE_SHARE) if self.cache_bytes is None else self.cache_bytes


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
        num_tokens = _longest(question, int(question.left_bytes * GROWN_SHARE))
    if num_tokens < max(2, wanted or 0):
        raise InvalidConfig(_too_small(question, num_tokens))
    length = wanted or _choose_length(question, num_tokens)
    prompt_bytes = _pages(question, length) * question.prompt_page_bytes
    full_pages = question.max_num_seqs * _pages(question, length)
    budget_bytes = question.budget_bytes - prompt_bytes
    budget_pages = _tokens(question, budget_bytes) // question.page_tokens
    num_pages = max(_pages(question, length), min(full_pages, budget_pages))
    reserved = num_pages
    if question.cache_bytes is None:
        grown_bytes = int(question.left_bytes * GROWN_SHARE) - prompt_bytes
        most = _tokens(question, grown_bytes) // question.page_tokens
        reserved = max(num_pages, min(full_pages, most))
    return Capacity(num_pages=num_pages, max_model_len=length, num_reserved=reserved)


def _choose_length(question: CapacityQuestion, num_tokens: int) -> int:
    usual = min(question.model_context, DEFAULT_MAX_MODEL_LEN, num_tokens)
    return max(usual, min(question.model_context, num_tokens // _FULL_SEQUENCES))


def _pages(question: CapacityQuestion, num_tokens: int) -> int:
    return -(-num_tokens // question.page_tokens)


def _tokens(question: CapacityQuestion, size_bytes: int) -> int:
    return size_bytes // question.page_bytes * question.page_tokens


def _longest(question: CapacityQuestion, size_bytes: int) -> int:
    """The tokens of the longest sequence that fits, with all that its pages take."""
    page_bytes = question.page_bytes + question.prompt_page_bytes
    return size_bytes // page_bytes * question.page_tokens


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
        f"{_tokens(question, question.left_bytes)} tokens: lower kv_cache_bytes or leave it out"
    )


def _too_small(question: CapacityQuestion, num_tokens: int) -> str:
    wanted = max(2, question.max_model_len or 2)
    page_bytes = question.page_bytes + question.prompt_page_bytes
    needed_bytes = page_bytes * _pages(question, wanted)
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
