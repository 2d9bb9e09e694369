"""From a name to a model in memory, with its tokenizer."""

from dataclasses import dataclass
from pathlib import Path

import torch

from llm_engine.adapters.adapter_set import AdapterSet
from llm_engine.config import EngineConfig
from llm_engine.decisions import EngineDecisions, decide
from llm_engine.device import EngineDevice
from llm_engine.errors import UnsupportedModel
from llm_engine.layers.form_choice import FormQuestion, choose_forms
from llm_engine.layers.kept_forms import PLAIN, KeptForms
from llm_engine.layers.weight_form import choose_weights
from llm_engine.model_config import GPT_OSS, ModelConfig
from llm_engine.models.base import CausalModel
from llm_engine.models.parameters import Parameters
from llm_engine.models.registry import model_class
from llm_engine.tokenizer import Tokenizer
from llm_engine.types import ModelCard
from llm_engine.weights.checkpoint import Checkpoint, PlacedCheckpoint, UnpackedCheckpoint
from llm_engine.weights.facts import WeightFacts
from llm_engine.weights.footprint import tensor_bytes
from llm_engine.weights.resolve import ModelSource, resolve
from llm_engine.weights.safetensors import SafetensorsCheckpoint
from llm_engine.weights.stacked_experts import StackedExperts

_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
_CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, and what its files say about ending an answer.

    Of a model over several ranks, `model` is this rank's share, `shape` the heads and layers that
    its cache holds, `num_parameters` counts the whole, and a token of the longest prompt takes
    `prompt_token_bytes` beside the cache, which holds one of `cache_parts` parts of each page.
    """

    model: CausalModel
    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    source: ModelSource
    dtype: torch.dtype
    facts: WeightFacts
    adapters: AdapterSet
    shape: ModelConfig
    num_parameters: int
    device: EngineDevice
    is_packed: bool = False
    prompt_token_bytes: int = 0
    cache_parts: int = 1

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights and adapters take, measured on the tensors themselves."""
        return tensor_bytes((self.model, self.adapters))

    def card(self, decisions: EngineDecisions, page_size: int) -> ModelCard:
        """What clients are shown of it under an engine's decisions."""
        config, capacity = self.model.config, decisions.capacity
        return ModelCard(
            name=self.source.name,
            source=self.source.description,
            architecture=config.architecture,
            num_parameters=self.num_parameters,
            dtype=str(self.dtype).removeprefix("torch."),
            max_model_len=capacity.max_model_len,
            vocab_size=config.vocab_size,
            kv_tokens=capacity.num_pages * page_size,
            kernels=decisions.ops.names,
        )


@dataclass(frozen=True, slots=True)
class ForeseenModel:
    """What a model's headers and an engine's settings say before a weight is read."""

    source: ModelSource
    checkpoint: Checkpoint
    shape: ModelConfig
    facts: WeightFacts
    dtype: torch.dtype
    device: EngineDevice
    decisions: EngineDecisions


def foresee(config: EngineConfig, device: EngineDevice | None = None) -> ForeseenModel:
    """Resolve the name, check the files' headers, decide what can be decided.

    `device` stands in for the one that `config` names.
    Raises: ModelNotFound, UnsupportedModel, and what `decide` raises.
    """
    source = resolve(config.model)
    device = device or EngineDevice.of(config.device)
    dtype = choose_dtype(config.dtype, device)
    checkpoint = open_checkpoint(source)
    shape = ModelConfig.from_mapping(checkpoint.config)
    parameters = Parameters.of(shape)
    parameters.check(checkpoint)
    facts = parameters.facts(checkpoint, dtype, device.place)
    forms = choose_forms(FormQuestion.of_engine(config, shape, dtype, device, facts))
    is_packed, _ = choose_weights(
        config, shape, device, is_quantised=facts.is_quantised, forms=forms, facts=facts
    )
    decisions = decide(
        config,
        shape,
        dtype,
        is_quantised=facts.is_quantised,
        facts=facts,
        weight_bytes=facts.packed_bytes if is_packed else forms.weight_bytes(facts),
        device=device,
    )
    return ForeseenModel(source, checkpoint, shape, facts, dtype, device, decisions)


def load_model(config: EngineConfig, device: EngineDevice | None = None) -> LoadedModel:
    """Resolve the name, decide what can be decided, read the weights, build the tokenizer.

    Raises: ModelNotFound, UnsupportedModel; before a weight is read, what `decide` raises.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    found = foresee(config, device)
    found.device.use()
    source, shape, facts = found.source, found.shape, found.facts
    dtype, checkpoint = found.dtype, found.checkpoint
    if found.decisions.ops.is_native:
        dtype = torch.float32  # of what lies between the packed products
    elif found.device.is_cpu:
        checkpoint = UnpackedCheckpoint(checkpoint)
    else:
        checkpoint = PlacedCheckpoint(checkpoint, found.device.place)
    model = load_weights(checkpoint, dtype, found.decisions.ops.forms)
    adapters = AdapterSet.load(config.adapters, shape, dtype).to(found.device.place)
    tokenizer, eos_token_ids = load_tokenizer(source, checkpoint.eos_token_ids)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids,
        source=source,
        dtype=dtype,
        facts=facts,
        adapters=adapters,
        shape=shape,
        num_parameters=model.num_parameters,
        device=found.device,
        is_packed=found.decisions.ops.is_native,
    )


def load_tokenizer(
    source: ModelSource, eos_token_ids: frozenset[int]
) -> tuple[Tokenizer, frozenset[int]]:
    """The tokenizer, and the tokens that end an answer by the model's files or by itself."""
    tokenizer = Tokenizer.load(source)
    own = set[int]() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    return tokenizer, eos_token_ids | own


def open_checkpoint(source: ModelSource) -> Checkpoint:
    """Open the files of a model without reading tensors."""
    if source.kind == "gguf":
        from llm_engine.weights.gguf import GgufCheckpoint  # the gguf package takes half a second

        return GgufCheckpoint(source.path)
    checkpoint = SafetensorsCheckpoint(source.path)
    if GPT_OSS in (checkpoint.config.get("architectures") or ()):
        return StackedExperts(checkpoint, ModelConfig.from_mapping(checkpoint.config).num_experts)
    return checkpoint


def load_weights(
    checkpoint: Checkpoint, dtype: torch.dtype, forms: KeptForms = PLAIN
) -> CausalModel:
    """Check what the headers say, read every tensor once, then close the files.

    Raises: UnsupportedModel if tensors are missing, have another shape than the config says, or
        are left over and would be ignored.
    """
    config = ModelConfig.from_mapping(checkpoint.config)
    Parameters.of(config).check(checkpoint)
    return read_tensors(config, checkpoint, dtype, forms)


def read_tensors(
    config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype, forms: KeptForms = PLAIN
) -> CausalModel:
    """The model of checked tensors; the files are closed.

    Raises: UnsupportedModel if tensors are left over and would be ignored.
    """
    with torch.inference_mode():
        model = model_class(config.architecture).load(config, checkpoint, dtype, forms)
    left_over = [name for name in checkpoint.untaken() if not _is_redundant(name, config)]
    checkpoint.close()
    if left_over:
        raise UnsupportedModel(
            f"{len(left_over)} tensors have no place in {config.architecture}: "
            f"{', '.join(left_over[:5])}"
        )
    return model


def choose_dtype(name: str, device: EngineDevice, cpuinfo: Path = _CPUINFO) -> torch.dtype:
    """The dtype asked for; "auto" is bfloat16 where the device multiplies it natively."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    has_units = has_bf16_units(cpuinfo) if device.is_cpu else bool(device.traits.bf16_mma)
    return torch.bfloat16 if has_units else torch.float32


def has_bf16_units(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether the CPU's flags name AVX512-BF16 or AMX; false where the file does not exist."""
    if not cpuinfo.is_file():
        return False
    for line in cpuinfo.read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            return not _BF16_FLAGS.isdisjoint(line.split())
    return False


def _is_redundant(name: str, config: ModelConfig) -> bool:
    """Tensors that repeat what the config says or what another tensor holds."""
    return name.endswith("rotary_emb.inv_freq") or (config.is_tied and name == "lm_head.weight")
