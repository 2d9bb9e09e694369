"""The plan of a model whose files are here: the engine's own figures, before a weight is read."""

import json

import pytest

from llm_engine.engine import LLMEngine
from llm_engine.weights.resolve import BUNDLED_NAME, resolve
from workers.llm_settings import engine_config
from workers.planning import plan
from workers.planning.inputs import find_model
from workers.planning.local_engine import LocalEngine, RefusedEngine, local_engine_of
from workers.settings import Settings

GGUF = str(resolve(BUNDLED_NAME).path)


@pytest.fixture
def cache_of_4000_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A size that does not follow what the machine has to spare."""
    monkeypatch.setenv("LANEWISE_LLM_KV_CACHE_BYTES", str(4000 * 16 * 30 * 2 * 3 * (64 + 2) * 2))


@pytest.mark.parametrize("settings", [{}, {"DTYPE": "float32", "LLM_MAX_MODEL_LEN": "3000"}])
def test_it_says_what_the_engine_then_decides(
    monkeypatch: pytest.MonkeyPatch, cache_of_4000_pages: None, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"LANEWISE_{name}", value)
    found = local_engine_of(GGUF, "", 1000)
    assert isinstance(found, LocalEngine)
    engine = LLMEngine.load(engine_config(Settings(llm_model=GGUF)))
    assert found.max_model_len == engine.card.max_model_len
    assert found.kv_tokens == engine.card.kv_tokens
    assert found.prompt_chunk_tokens == engine._chunk_tokens
    assert found.kv_bytes_per_token == engine._cache.layout.groups[0].page_bytes // 16
    assert found.is_packed is not settings
    shown = {decision["what"]: decision["chosen"] for decision in found.decisions}
    assert shown == {d.what: d.chosen for d in engine.ledger if d.what in shown}
    assert set(shown) == {"weights", "KV capacity", "prompt chunk", "page size", "prefix cache"}
    assert found.num_sequences == min(32, found.kv_tokens // 16 // 63)
    engine.preparer.close()


def test_the_plan_of_a_file_is_that_of_its_config() -> None:
    _, ours = find_model(GGUF)
    _, published = find_model(BUNDLED_NAME)
    for name in ("model_type", "hidden_size", "num_hidden_layers", "num_key_value_heads"):
        assert ours[name] == published[name]
    assert plan.make_plan(GGUF, "1x-h200", plan.PlanSizes()).as_dict()["phases"]


def test_the_command_shows_it(cache_of_4000_pages: None, capsys: pytest.CaptureFixture) -> None:
    assert plan.main([BUNDLED_NAME, "--json", "--context", "8000"]) == 0
    engine = json.loads(capsys.readouterr().out)["engine"]
    assert engine["sequences"] == {
        "context": 8000,
        "at_a_time": engine["kv_cache"]["tokens"] // 8000,
    }
    assert plan.main([BUNDLED_NAME]) == 0
    assert "longest sequence" in capsys.readouterr().out


def test_none_is_served_of_what_is_longer_than_the_longest(cache_of_4000_pages: None) -> None:
    found = local_engine_of(BUNDLED_NAME, "", 9000)
    assert isinstance(found, LocalEngine)
    assert (found.max_model_len, found.num_sequences) == (8192, 0)


def test_a_described_machine_and_a_mere_config_have_none(tmp_path) -> None:
    assert local_engine_of(BUNDLED_NAME, "1x-h200", 100) is None
    assert local_engine_of("qwen3-30b-a3b", "", 100) is None
    (tmp_path / "config.json").write_text("{}")
    assert local_engine_of(str(tmp_path), "", 100) is None


@pytest.mark.parametrize(
    ("name", "value", "reason", "exit_code"),
    [
        ("LLM_KV_CACHE_BYTES", "1000", "a cache of 1000 bytes holds 0 tokens", 4),
        ("LLM_LAYOUT", "tp2", "LANEWISE_LLM_LAYOUT is tp2", 0),
    ],
)
def test_what_the_engine_would_refuse_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    name: str,
    value: str,
    reason: str,
    exit_code: int,
) -> None:
    monkeypatch.setenv(f"LANEWISE_{name}", value)
    found = local_engine_of(BUNDLED_NAME, "", 100)
    assert isinstance(found, RefusedEngine)
    assert found.exit_code == exit_code
    found.show()
    assert f"would refuse it: {reason}" in capsys.readouterr().out
