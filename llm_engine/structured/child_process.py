"""The parent's end of the compiling process: one grammar at a time, each within its time."""

import json
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from llm_engine.errors import RequestFailed

_SCRIPT = Path(__file__).with_name("compile_child.py")
_START_TIMEOUT_S = 60.0
# The kernel's timer in the child fires first; this is for a child that does not even start on it.
_SLACK_S = 1.0


class CompilingProcess:
    """Tries grammars out in a process that is killed when one takes too long.

    Started with the first grammar, and again after a death. Safe to use from several threads.
    Invariants: no child outlives its owner; a killed grammar leaves nothing behind.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Keep what a child needs to know of the vocabulary; nothing is started yet."""
        vocabulary = {"tokenizer": tokenizer_json, "size": vocab_size, "eos": list(eos_token_ids)}
        self._vocabulary = json.dumps(vocabulary)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._reaper: weakref.finalize[Any, Any] | None = None

    def try_out(
        self, grammar: str, limits: Mapping[str, object], timeout_s: float
    ) -> tuple[str, tuple[str, ...]]:
        """Compile a grammar elsewhere. Returns its error ("" for none) and its warnings.

        Raises: TimeoutError after `timeout_s` seconds; MemoryError if the grammar broke the child;
        RequestFailed if no child can be started.
        """
        order = json.dumps({"grammar": grammar, "limits": limits, "timeout_s": timeout_s})
        with self._lock:
            # A child may leave, idle, at the very moment it is asked: then another is asked.
            answer = self._answer(order, timeout_s) or self._answer(order, timeout_s)
        if answer is None:
            raise MemoryError("the compiling process ended twice")
        return str(answer["error"]), tuple(cast(list[str], answer["warnings"]))

    def close(self) -> None:
        """End the child; the next grammar would start another."""
        with self._lock:
            self._kill()

    def _answer(self, order: str, timeout_s: float) -> Mapping[str, object] | None:
        """Ask the child; None if it had ended before it saw the order."""
        process = self._started()
        began_s = time.monotonic()
        try:
            return self._ask(process, order, timeout_s + _SLACK_S)
        except TimeoutError:
            self._kill()
            raise
        except (BrokenPipeError, EOFError) as error:
            is_late = time.monotonic() - began_s >= timeout_s * 0.99
            is_timer = process.wait(_SLACK_S) == -signal.SIGALRM
            self._kill()
            if is_timer and is_late:
                raise TimeoutError(f"no result after {timeout_s} s") from error
            if is_timer or isinstance(error, BrokenPipeError):
                return None
            raise MemoryError("the compiling process was broken by it") from error

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._reaper = weakref.finalize(self, _end, self._process)
        try:
            self._ask(self._process, self._vocabulary, _START_TIMEOUT_S)
        except (BrokenPipeError, EOFError, TimeoutError) as error:
            self._kill()
            raise RequestFailed(f"the grammar compiler did not start: {error}") from error
        return self._process

    def _ask(
        self, process: subprocess.Popen[bytes], line: str, timeout_s: float
    ) -> Mapping[str, object]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                raise TimeoutError(f"no result after {timeout_s} s")
            piece = process.stdout.read1(65536)  # type: ignore[attr-defined]
            if not piece:
                raise EOFError("the compiling process ended")
            self._buffer += piece
        answer, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(answer)

    def _kill(self) -> None:
        if self._reaper is not None:
            self._reaper()
        self._process, self._reaper, self._buffer = None, None, b""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            _close(pipe)


def _close(pipe: Any) -> None:  # noqa: ANN401 - either direction of a pipe
    try:
        pipe.close()
    except BrokenPipeError:
        return  # unsent bytes for a process that is gone
