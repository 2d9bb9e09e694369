"""A process that tries grammars out, so that a runaway compilation can be ended by the kernel.

Run as a script, alone: it imports llguidance and the standard library, nothing of this package.
Lines of JSON on stdin: first the vocabulary, then one grammar each; one line of JSON back for
each grammar. A timer of the kernel ends the process when a grammar takes too long, even if the
parent is gone, and after a while without work.
"""

import json
import resource
import signal
import sys
import threading
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

IDLE_S = 600.0
# A grammar that fits this stack fits any thread of the parent.
_STACK_BYTES = 4 << 20
_ADDRESS_SPACE_BYTES = 6 << 30


def try_grammar(tokenizer: LLTokenizer, order: dict[str, Any]) -> dict[str, Any]:
    """Compile, and compute the first mask. Returns the error ("" for none) and the warnings."""
    matcher = LLMatcher(
        tokenizer, order["grammar"], log_level=0, limits=LLParserLimits(**order["limits"])
    )
    if not matcher.is_error():
        matcher.compute_bitmask()
    return {"error": matcher.get_error(), "warnings": matcher.get_grammar_warnings()}


def main() -> None:
    """Answer until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    vocabulary = json.loads(sys.stdin.readline())
    tokenizer = LLTokenizer(
        vocabulary["tokenizer"], n_vocab=vocabulary["size"], eos_token=vocabulary["eos"]
    )
    _say({"ready": True})
    signal.setitimer(signal.ITIMER_REAL, IDLE_S)
    for line in sys.stdin:
        order = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, order["timeout_s"])
        _say(try_grammar(tokenizer, order))
        signal.setitimer(signal.ITIMER_REAL, IDLE_S)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    threading.stack_size(_STACK_BYTES)
    worker = threading.Thread(target=main)
    worker.start()
    worker.join()
