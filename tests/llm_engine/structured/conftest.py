"""SmolLM2's tokenizer, a compiler over it, and a writer that draws random allowed tokens."""

import json
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from llm_engine.structured.compiler import GrammarCompiler
from llm_engine.structured.grammar import grammar_of
from llm_engine.structured.matcher import TokenMatcher, allocate_bitmask
from llm_engine.structured.vocabulary import Vocabulary
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import Constraint
from llm_engine.weights.resolve import BUNDLED_NAME, resolve

VOCAB_SIZE = 49_152
EOS = 2


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(resolve(BUNDLED_NAME))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return Vocabulary(tokenizer.backend, VOCAB_SIZE, (0, EOS))


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(vocabulary, timeout_s=20.0)
    yield compiler
    compiler.close()


@pytest.fixture(scope="session")
def matcher_of(compiler: GrammarCompiler) -> Callable[..., TokenMatcher]:
    """A fresh matcher; a source that is no text is dumped as JSON."""

    def build(kind, source="", *, strict: bool = False) -> TokenMatcher:
        text = source if isinstance(source, str) else json.dumps(source)
        return compiler.compile(grammar_of(Constraint(kind, text, strict))).matcher()

    return build


@pytest.fixture(scope="session")
def allowed_ids() -> Callable[[TokenMatcher], np.ndarray]:
    """The tokens that a matcher allows next, ascending."""

    def ids(matcher: TokenMatcher) -> np.ndarray:
        bitmask_SW = allocate_bitmask(1, VOCAB_SIZE)
        matcher.fill(bitmask_SW[0])
        return np.flatnonzero(np.unpackbits(bitmask_SW.numpy().view(np.uint8), bitorder="little"))

    return ids


@pytest.fixture(scope="session")
def allowed(allowed_ids) -> Callable[[TokenMatcher], set[int]]:
    """The same as a set."""
    return lambda matcher: {int(i) for i in allowed_ids(matcher)}


@pytest.fixture(scope="session")
def write(allowed_ids, tokenizer: Tokenizer) -> Callable[..., str | None]:
    """An answer of random allowed tokens, closing ones preferred; None if it did not end."""
    closes = np.array([tokenizer.token_bytes(i)[:1] in b'"]}' for i in range(VOCAB_SIZE)])

    def draw(matcher: TokenMatcher, seed: int, max_tokens: int = 200) -> str | None:
        rng = random.Random(seed)
        written: list[int] = []
        while len(written) < max_tokens:
            ids = allowed_ids(matcher)
            assert ids.size, "nothing is allowed and it is not finished"
            if EOS in ids and (ids.size == 2 or rng.random() < 0.5):
                return tokenizer.decode(written)
            ids = ids[(ids != 0) & (ids != EOS)]
            closing = ids[closes[ids]]
            some = closing if closing.size and rng.random() < 0.6 else ids
            written.append(int(some[rng.randrange(some.size)]))
            assert matcher.accept(written[-1])
            if matcher.is_finished:
                return tokenizer.decode(written)
        return None

    return draw
