"""Shared models: a tiny random Llama with a byte tokenizer, and SmolLM2 with its oracle."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llm_engine.answers.answers import Answers
from llm_engine.cache.geometry import cache_layout
from llm_engine.config import EngineConfig
from llm_engine.engine import LLMEngine
from llm_engine.loader import LoadedModel, load_model
from llm_engine.model_config import ModelConfig
from llm_engine.prompt import PreparedRequest
from llm_engine.sequence import Chunk, Sequence
from llm_engine.types import Finished, GenerationRequest, SamplingParams, TextDelta
from llm_engine.weights.resolve import BUNDLED_NAME, resolve

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
TINY = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 256,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "attn_implementation": "eager",
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., Any]:
    """Builds a transformers model of random float32 weights; keywords override the config.

    `family` is the name of its classes: Llama, Mistral, Qwen2, Qwen3, Qwen3Moe, GptOss.
    """
    import transformers

    def build(family: str = "Llama", **overrides: Any) -> Any:
        torch.manual_seed(7)
        config = getattr(transformers, f"{family}Config")(**{**TINY, **overrides})
        model = getattr(transformers, f"{family}ForCausalLM")(config).float().eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_norm = "norm" in name
                fan_in = parameter.shape[-1]
                std = 0.2 if is_norm else 0.5 if parameter.dim() == 1 else fan_in**-0.5
                std = 1.0 if "embed_tokens" in name else std
                parameter.normal_(1.0 if is_norm else 0.0, std)
        return model

    return build


@pytest.fixture(scope="session")
def save_byte_tokenizer() -> Callable[[Path], None]:
    """Writes a tokenizer of one token per byte and `<eos>`, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from llm_engine.weights.gguf_tokenizer import byte_level_alphabet

    def save(folder: Path) -> None:
        vocab = {char: byte for char, byte in byte_level_alphabet().items()}
        backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(["<eos>"])
        fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
        fast.chat_template = TEMPLATE
        fast.save_pretrained(str(folder))

    return save


@pytest.fixture(scope="session")
def tiny_oracle(make_tiny: Callable[..., Any]) -> Any:
    """The transformers model whose weights `tiny_folder` holds."""
    return make_tiny()


@pytest.fixture(scope="session")
def tiny_folder(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_oracle: Any,
    save_byte_tokenizer: Callable[[Path], None],
) -> Path:
    """A model folder of several safetensors shards, with a tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_oracle.save_pretrained(folder, max_shard_size="60KB")
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_loaded(tiny_folder: Path) -> LoadedModel:
    """The tiny model in float32, shared by all engines of the tests."""
    return load_model(EngineConfig(model=str(tiny_folder), dtype="float32"))


@pytest.fixture
def tiny_engine(tiny_loaded: LoadedModel) -> Callable[..., LLMEngine]:
    """Builds an engine on the shared tiny model; keywords are settings."""

    def build(**settings: Any) -> LLMEngine:
        # How much "auto" drafts follows the clock, so tests of anything else do without.
        settings = {"page_size": 4, "prefill_chunk_tokens": 16, "speculation": "off", **settings}
        return LLMEngine(tiny_loaded, EngineConfig(model="tiny", dtype="float32", **settings))

    return build


@pytest.fixture
def make_request() -> Callable[..., GenerationRequest]:
    """Builds a request from prompt tokens; keywords are sampling parameters."""

    def build(request_id: str, prompt: Any, *, priority: int = 0, **params: Any) -> Any:
        return GenerationRequest(
            request_id=request_id,
            messages=None,
            prompt_token_ids=tuple(prompt),
            params=SamplingParams(**params),
            priority=priority,
        )

    return build


@pytest.fixture(scope="session")
def tokens_of() -> Callable[..., dict[str, list[int]]]:
    """Collects the tokens of choice `index` of each request from events."""

    def collect(events: Any, index: int = 0) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {}
        for request_id, event in events:
            if isinstance(event, Finished):
                continue
            assert isinstance(event, TextDelta)
            if event.index == index:
                tokens.setdefault(request_id, []).extend(event.token_ids)
        return tokens

    return collect


@pytest.fixture(scope="session")
def smollm2() -> LoadedModel:
    """SmolLM2-135M-Instruct, dequantised to float32."""
    return load_model(EngineConfig(model=BUNDLED_NAME, dtype="float32"))


@pytest.fixture(scope="session")
def smollm2_oracle() -> Any:
    """The same weights as transformers reads them, through its own GGUF conversion."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = str(resolve(BUNDLED_NAME).path)
    config = LlamaConfig(**load_gguf_checkpoint(path)["config"])
    model = LlamaForCausalLM(config).float()
    checkpoint = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(checkpoint["tensors"], strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    return model.eval()


class _ScatteredPages:
    """Pages of one sequence, spread over the cache in an order of their own, in every group."""

    page_size = 16
    num_pages = 101

    def __init__(self, config: ModelConfig) -> None:
        self.layout = cache_layout(config, page_tokens=self.page_size, layer_token_bytes=1)
        self.pages_by_group = [self.num_pages] * len(self.layout.groups)

    def table(self, seq_id: int, group: int = 0) -> list[int]:
        """Page i of the sequence; 37 and 101 have no common factor, so none comes twice."""
        first = 5 * seq_id + 11 * group
        return [(37 * i + first) % self.num_pages for i in range(self.num_pages)]


@pytest.fixture(scope="session")
def logits_of() -> Callable[..., torch.Tensor]:
    """Runs a model over one sequence in chunks; logits (chunks, V) at the end of each.

    `ops` stand in for those of the CPU.
    """
    from kernels.ledger import Ledger
    from llm_engine.device import EngineDevice
    from llm_engine.layers.bound_ops import bind_ops
    from llm_engine.layers.op_choice import OpSizes
    from llm_engine.runner import Runner
    from llm_engine.sequence import Chunk, Sequence

    def run(
        model: Any,
        ids: list[int],
        sizes: list[int],
        *,
        dtype: torch.dtype = torch.float32,
        adapters: Any = None,
        adapter: str | None = None,
        is_native: bool = False,
        ops: Any = None,
    ) -> torch.Tensor:
        pages: Any = _ScatteredPages(model.config)
        limits = OpSizes(chunk_tokens=512, num_seqs=4, context=400, page_size=pages.page_size)
        ops = ops or bind_ops(
            model.config,
            dtype,
            limits,
            asked={},
            ledger=Ledger(),
            device=EngineDevice.of("cpu"),
            is_native=is_native,
        )
        runner = Runner(model, pages, dtype, ops, adapters)
        seq = Sequence(seq_id=0, token_ids=ids, num_prompt_tokens=len(ids), max_total_tokens=400)
        seq.adapter_id = adapter
        rows: list[torch.Tensor] = []
        for size in sizes:
            logits = runner.run([Chunk(seq, seq.num_computed, size, is_last=True)])
            assert logits is not None
            rows.append(logits)
            seq.num_computed += size
        return torch.cat(rows)

    return run


class ToyLoop:
    """`Answers` stepped without an engine: logits are a function of the tokens before them.

    Every sequence runs in every step; `hidden` states hold the position that a row predicts.
    """

    def __init__(
        self, tokenizer: Any, logits_of: Callable[[Any], Any], chunk_tokens: int, **settings: Any
    ) -> None:
        self.answers = Answers(tokenizer, frozenset({256}), **settings)
        self.num_steps = 0
        self._logits_of = logits_of
        self._chunk_tokens = chunk_tokens
        self.running: list[Sequence] = []

    def add(self, request: GenerationRequest, **seams: Any) -> None:
        prompt, params = request.prompt_token_ids or (), request.params
        longest = len(prompt) + (params.max_tokens or 40)
        self.running += self.answers.open(PreparedRequest(request, prompt, longest, **seams))

    def step(self) -> list[Any]:
        self.num_steps += 1
        self.answers.expire()
        self.answers.draft()
        self._remove_ended()
        chunks = [self._chunk(seq) for seq in self.running]
        rows = [(chunk, row) for chunk in chunks for row in self._rows(chunk)]
        if not rows:
            logits, hidden = torch.empty(0, 257), torch.empty(0, 1)
        else:
            logits = torch.stack([self._logits(chunk, row) for chunk, row in rows])
            hidden = torch.tensor([[float(chunk.start + row + 1)] for chunk, row in rows])
        events = self.answers.advance(chunks, logits, hidden)
        for chunk in chunks:
            seq = chunk.seq
            seq.num_computed = min(chunk.start + chunk.num_tokens, len(seq.token_ids) - 1)
            seq.draft_ids = ()
        self._remove_ended()
        return events

    def run(self, *requests: GenerationRequest, **seams: Any) -> list[Any]:
        for request in requests:
            self.add(request, **seams)
        events: list[Any] = []
        while self.running:
            events += self.step()
        return events

    def _remove_ended(self) -> None:
        for seq in self.answers.take_ended():
            self.running.remove(seq)

    def _chunk(self, seq: Sequence) -> Chunk:
        num_known = min(seq.num_uncomputed, self._chunk_tokens)
        is_last = num_known == seq.num_uncomputed
        num_drafts = len(seq.draft_ids) if is_last else 0
        return Chunk(seq, seq.num_computed, num_known + num_drafts, is_last, num_drafts)

    def _rows(self, chunk: Chunk) -> range:
        return range(chunk.num_tokens - chunk.num_logits, chunk.num_tokens)

    def _logits(self, chunk: Chunk, row: int) -> Any:
        known = [*chunk.seq.token_ids[: chunk.start], *chunk.token_ids[: row + 1]]
        return self._logits_of(known)


@pytest.fixture
def toy_loop(tiny_loaded: LoadedModel) -> Callable[..., ToyLoop]:
    """Builds a loop over random logits that depend on the last two tokens.

    Few letters are likely, so that texts repeat themselves; `<eos>` comes once in a while.
    """
    generator = torch.Generator().manual_seed(5)
    table = torch.full((61, 257), -30.0)
    table[:, 97:105] = 2.5 * torch.randn(61, 8, generator=generator)
    table[:, 256] = -1.0

    def of_last_two(token_ids: Any) -> Any:
        first, second = (0, *token_ids)[-2:]
        return table[(7 * first + 3 * second) % 61]

    def build(logits_of: Any = of_last_two, *, chunk_tokens: int = 64, **settings: Any) -> ToyLoop:
        return ToyLoop(tiny_loaded.tokenizer, logits_of, chunk_tokens, **settings)

    return build
