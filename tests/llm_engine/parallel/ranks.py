"""One rank as a process: joins a group for each check, and serves or follows a layout.

Run with `rank`, `pipe` (tasks in, answers out) and `commands` (to the others, or from rank 0) in
its globals.
"""

import traceback

import torch

from kernels.collectives.communicator import join
from kernels.collectives.group import Group
from kernels.hardware.traits import load_traits
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.engine import LLMEngine
from llm_engine.parallel.commands import Ranks
from llm_engine.parallel.executor import load_rank
from llm_engine.parallel.seat import Seat
from llm_engine.parallel.step_command import StepCommand
from llm_engine.types import GenerationRequest, SamplingParams


class Pipes:
    """Commands to every follower through its own pipe; the last one of a check is empty."""

    def __init__(self, pipes):
        self._pipes = pipes
        self.phases = []

    def send(self, data):
        if data:
            self.phases.append(StepCommand.decode(data).phase)
        for pipe in self._pipes:
            pipe.send_bytes(data)


def asked(settings):
    """The engine's settings, and the device that stands in for theirs.

    `family` names one whose kernels run over tensors of the CPU, in Triton's interpreter.
    """
    family = settings.get("family")
    config = EngineConfig(**{name: value for name, value in settings.items() if name != "family"})
    device = None if family is None else EngineDevice(torch.device("cpu"), load_traits(family))
    return config, device


def generated(engine, prompts, max_tokens, first=None):
    """Tokens of each request, and the logits of each step; a prompt may follow an adapter.

    `first` is told the logits of the first request by the position that each is for.
    """
    asked = [each if isinstance(each[0], str) else (None, each) for each in prompts]
    logits, run = [], engine._runner.run

    def watched(chunks):
        found = run(chunks)
        if found is not None:
            logits.append(found.clone())
        row = 0
        for chunk in chunks:
            if first is not None and chunk.seq.request_id == "0":
                for index in range(chunk.num_logits):
                    position = chunk.end - chunk.num_logits + index + 1
                    first[position] = found[row + index].numpy().copy()
            row += chunk.num_logits
        return found

    engine._runner.run = watched
    events = engine.generate(
        GenerationRequest(
            request_id=str(index),
            messages=None,
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
            adapter=adapter,
        )
        for index, (adapter, prompt) in enumerate(asked)
    )
    tokens = {}
    for request_id, event in events:
        tokens.setdefault(request_id, []).extend(getattr(event, "token_ids", ()))
    engine._runner.run = run
    return [tokens[str(index)] for index in range(len(prompts))], logits


def lead(comm, pipes, settings, rounds, max_tokens):
    """Rank 0: generate for each round of prompts."""
    commands = Pipes(pipes)
    try:
        config, device = asked(settings)
        seat = Seat.take(config, Ranks(comm, commands), device)
        engine = LLMEngine(seat.share.loaded(), config, seat=seat)
        firsts = [{} for _ in rounds]
        answers = [
            generated(engine, prompts, max_tokens, first)
            for prompts, first in zip(rounds, firsts, strict=True)
        ]
        engine.check_integrity()
        return {
            "tokens": [tokens for tokens, _ in answers],
            "logits": [[step.numpy() for step in steps] for _, steps in answers],
            "firsts": firsts,
            "phases": commands.phases,
            "decisions": [(d.what, d.chosen) for d in engine.ledger],
            "stats": engine.stats(),
            "card": engine.card,
        }
    finally:
        commands.send(b"")


def follow(comm, pipe, settings):
    """A follower: carry out commands until an empty one comes."""
    executor = None
    try:
        config, device = asked(settings)
        executor = load_rank(config, comm, device)
        while data := pipe.recv_bytes():
            executor.execute(StepCommand.decode(data))
        return None
    except BaseException:
        while pipe.recv_bytes():  # what rank 0 sent meanwhile belongs to this check
            pass
        raise
    finally:
        if executor is not None:
            executor.close()


def main(rank, pipe, commands):
    torch.set_num_threads(1)
    pipe.send({"value": "ready"})
    while task := pipe.recv():
        group, settings, rounds, max_tokens = task
        try:
            comm = join(Group(rank=rank, **group), slot_bytes=1 << 20)
            if rank == 0:
                value = lead(comm, commands, settings, rounds, max_tokens)
            else:
                value = follow(comm, commands, settings)
            comm.close()
            answer = {"value": value}
        except Exception as error:  # noqa: BLE001 - reported to the test
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        pipe.send(answer)


if rank >= 0:  # noqa: F821 - given by who runs this file
    main(rank, pipe, commands)  # noqa: F821
