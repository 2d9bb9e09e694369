"""`python -m llm_engine "prompt"`: streams an answer to the terminal."""

import argparse
import sys
from collections.abc import Sequence

from llm_engine.config import DTYPES, EngineConfig
from llm_engine.errors import LLMError
from llm_engine.types import ChatMessage, GenerationRequest, SamplingParams, TextDelta
from llm_engine.weights.resolve import BUNDLED_NAME


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m llm_engine", description=__doc__)
    parser.add_argument("prompt", help="what to ask")
    parser.add_argument("--model", default=BUNDLED_NAME, help="name, folder, .gguf file or hub id")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=None)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Answer one prompt. Returns the exit code: 0 done, 1 for an error, shown on stderr."""
    args = build_parser().parse_args(argv)
    try:
        _answer(args)
    except LLMError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _answer(args: argparse.Namespace) -> None:
    from llm_engine.engine import LLMEngine

    params = SamplingParams(
        temperature=args.temperature, max_tokens=args.max_tokens, seed=args.seed
    )
    request = GenerationRequest(
        request_id="cli",
        messages=(ChatMessage("user", args.prompt),),
        prompt_token_ids=None,
        params=params,
    )
    engine = LLMEngine.load(EngineConfig(model=args.model, dtype=args.dtype, max_num_seqs=1))
    engine.add(request)
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, TextDelta):
                print(event.text, end="", flush=True)
        for _, failure in engine.take_failures():
            raise failure
    print()


if __name__ == "__main__":
    sys.exit(main())
