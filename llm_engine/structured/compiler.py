"""Grammars compiled before a request is queued, each within its time, and kept.

Library: llguidance (MIT, a 3 MB wheel without dependencies, one for all Python 3 versions;
releases every month; it serves the same purpose in vLLM, SGLang and llama.cpp). xgrammar
(Apache-2.0) demands torch, transformers, triton and apache-tvm-ffi. llguidance reads Lark, bounds
every phase by counted work ("fuel"), goes back any number of tokens, and builds its automata
lazily, so that most schemas compile within a millisecond.

A grammar that might be expensive is first compiled in a process that the kernel ends after
`timeout_s`; only what came through is compiled here. Nothing of this runs on the engine's thread.
"""

import json
import logging
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits

from llm_engine.errors import InvalidRequest
from llm_engine.structured.bounds import OutOfBounds, walk
from llm_engine.structured.child_process import CompilingProcess
from llm_engine.structured.grammar import Grammar
from llm_engine.structured.grammar_matcher import GrammarMatcher
from llm_engine.structured.vocabulary import Vocabulary

NUM_KEPT = 128
# Work per phase as the library counts it; a mask's own bounds come to some 20 ms at the worst.
LIMITS: dict[str, object] = {"max_lexer_states": 65_536, "verbose_errors": False}
_NOTHING = "nothing satisfies it: it contradicts itself, or its references run in a circle"
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*?\])")
_MAX_MESSAGE_CHARS = 400
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A grammar ready for use; `unenforced` names what of the schema is not followed."""

    prototype: LLMatcher
    vocabulary: Vocabulary
    unenforced: tuple[str, ...]

    def matcher(self) -> GrammarMatcher:
        """The state of one choice at its beginning; takes microseconds."""
        vocabulary = self.vocabulary
        return GrammarMatcher(
            self.prototype.deep_copy(), frozenset(vocabulary.eos_token_ids), vocabulary.size
        )


class GrammarCompiler:
    """Compiles for one vocabulary and keeps the last results, refusals included.

    Safe to use from several threads: the caller's thread waits, nobody else does.
    """

    def __init__(self, vocabulary: Vocabulary, *, timeout_s: float) -> None:
        """Nothing is built or started before the first grammar."""
        self.vocabulary = vocabulary
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Future[CompiledGrammar]] = OrderedDict()
        self._process: CompilingProcess | None = None

    def compile(self, grammar: Grammar) -> CompiledGrammar:
        """Compile, or take what was compiled before.

        Raises: InvalidRequest naming the cause: malformed, unsupported, contradictory, or not
            compiled within the time.
        """
        with self._lock:
            future = self._kept.get(grammar.text)
            is_mine = future is None
            if future is None:
                future = self._kept[grammar.text] = Future()
                if len(self._kept) > NUM_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(grammar.text)
        if is_mine:
            self._resolve(grammar, future)
        return future.result()

    def close(self) -> None:
        """End the compiling process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    def _resolve(self, grammar: Grammar, future: "Future[CompiledGrammar]") -> None:
        try:
            future.set_result(self._compile(grammar))
        except OutOfBounds as error:
            future.set_exception(InvalidRequest(f"{grammar.param}: {error}", param=grammar.param))
        except InvalidRequest as error:
            future.set_exception(error)
        except BaseException as error:
            with self._lock:
                self._kept.pop(grammar.text, None)
            future.set_exception(error)
            raise

    def _compile(self, grammar: Grammar) -> CompiledGrammar:
        tokenizer = self.vocabulary.tokenizer
        if not grammar.is_cheap:
            self._try_elsewhere(grammar)
        limits = LLParserLimits(**LIMITS)  # type: ignore[arg-type]
        matcher = LLMatcher(tokenizer, grammar.text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            raise OutOfBounds(_told(matcher.get_error(), grammar))
        unenforced = tuple(matcher.get_grammar_warnings())
        if unenforced:
            _LOG.warning("%s: not enforced: %s", grammar.param, "; ".join(unenforced))
        return CompiledGrammar(matcher, self.vocabulary, unenforced)

    def _try_elsewhere(self, grammar: Grammar) -> None:
        try:
            error, _ = self._compiling_process().try_out(grammar.text, LIMITS, self._timeout_s)
        except TimeoutError as timeout:
            raise OutOfBounds(
                f"it did not compile within {self._timeout_s:g} s: make it smaller or simpler"
            ) from timeout
        except MemoryError as broken:
            raise OutOfBounds(
                "it broke the compiler (memory or nesting): make it smaller or simpler"
            ) from broken
        if error:
            raise OutOfBounds(_told(error, grammar))

    def _compiling_process(self) -> CompilingProcess:
        with self._lock:
            if self._process is None:
                vocabulary = self.vocabulary
                self._process = CompilingProcess(
                    vocabulary.tokenizer_json, vocabulary.size, vocabulary.eos_token_ids
                )
            return self._process


def _told(error: str, grammar: Grammar) -> str:
    """The library's message without its inner state, with the place where it can be found."""
    if error.startswith("NoExtension"):
        return _NOTHING
    found = _UNIMPLEMENTED.match(error)
    if found is not None:
        for key in json.loads(found[1]):
            return f"{_place_of(key, grammar)} has the keyword {key!r}, which is not supported"
    told = " ".join(error.split("<state>")[0].split()) or "it could not be compiled"
    return told if len(told) <= _MAX_MESSAGE_CHARS else f"{told[:_MAX_MESSAGE_CHARS]} …"


def _place_of(key: str, grammar: Grammar) -> str:
    for part in grammar.parts.values():
        for path, node in walk(part.get("json_schema")):
            if key in node:
                return path
    return "the schema"
