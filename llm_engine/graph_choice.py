"""Whether steps that only decode are replayed from recorded graphs."""

from kernels.ledger import Decision, Rejection
from kernels.spec import Tier
from llm_engine.config import EngineConfig
from llm_engine.device import EngineDevice
from llm_engine.errors import InvalidConfig
from llm_engine.layers.op_choice import ENGINE
from llm_engine.model_config import ModelConfig

GRAPHS, ONE_BY_ONE = "recorded graphs", "kernels launched one by one"
_REASON = (
    "such a step launches a dozen small kernels a layer, which take longer to ask for than to "
    "compute; steps with a prompt, drafts or an adapter are launched kernel by kernel"
)


def choose_graphs(
    config: EngineConfig,
    model: ModelConfig,
    device: EngineDevice,
    *,
    counts_on_device: bool = False,
) -> Decision | None:
    """The decision; None on a CPU, which records no graphs.

    `counts_on_device` says that experts, where there are any, ask the processor nothing.
    Raises: InvalidConfig where graphs are asked for and cannot be had.
    """
    if device.is_cpu:
        return None
    problems = _problems(config, model, device)
    if model.moe is not None and not counts_on_device:
        problems = (*problems, "the processor reads how many tokens an expert has")
    if config.graphs == "on" and problems:
        raise InvalidConfig(f"graphs is 'on', but {'; '.join(problems)}: ask for 'auto'")
    is_on = config.graphs != "off" and not problems
    return Decision(
        kind="graph",
        where="llm engine, steps that only decode",
        what="graphs",
        asked=config.graphs,
        chosen=GRAPHS if is_on else ONE_BY_ONE,
        tier=Tier.FUSED if is_on else Tier.GENERIC,
        source="default" if config.graphs == "auto" else "explicit",
        reasons=(_REASON,) if is_on else ("asked for",) if config.graphs == "off" else (),
        rejected=(Rejection(candidate=GRAPHS, reasons=problems),) if problems else (),
        evidence="unverified on a device: the steps were compared on a CPU without recording",
    )


def _problems(config: EngineConfig, model: ModelConfig, device: EngineDevice) -> tuple[str, ...]:
    problems: list[str] = []
    traits = device.traits
    if not traits.graph_capture:
        problems.append(f"{traits.name} records none: {traits.note('graph_capture')}")
    if device.place.type == "cpu":
        problems.append("kernels are interpreted here, not launched")
    if model.windows is not None:
        problems.append("layers with windows have page tables of their own")
    if config.kernels.get("rotary_insert") == ENGINE:
        problems.append("the engine's rotation stores every row, and a graph has idle ones")
    if config.layout:
        problems.append("ranks exchange between kernels")
    return tuple(problems)
