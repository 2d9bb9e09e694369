"""A contender without a model: `form` in its options says how it behaves."""

import os
import time

from benchmarks.llm.child import Absent, options, serve_contender


class Scripted:
    """Produces the request's own prompt backwards, a token a step for each open request."""

    def __init__(self, form):
        self.form = form
        self.facts = {"version": "1.0", "form": "scripted", "reuses_prefixes": False}
        self._open = {}
        os.write(1, b"noise on standard output\n")

    @property
    def has_work(self):
        return bool(self._open)

    def add(self, request_id, prompt, max_tokens):
        self._open[request_id] = list(prompt)[::-1][:max_tokens]

    def step(self):
        if self.form == "dies":
            os._exit(7)
        if self.form == "raises":
            raise ValueError("no such token")
        if self.form == "hangs":
            time.sleep(60)
        produced = [
            (rid, [tokens.pop(0)], time.perf_counter()) for rid, tokens in self._open.items()
        ]
        self._open = {rid: tokens for rid, tokens in self._open.items() if tokens}
        return produced

    def num_cached(self, request_id):
        return None


def load(form):
    if form == "absent":
        raise Absent("needs another CPU")
    return Scripted(form)


if __name__ == "__main__":
    given = options()
    serve_contender(lambda: load(given["form"]))
