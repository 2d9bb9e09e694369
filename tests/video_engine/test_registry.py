"""Finding models: what is tried, what is refused, what stays unimported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from video_engine.config import EngineConfig
from video_engine.engine import VideoEngine
from video_engine.errors import ModelNotFound, UnsupportedModel
from video_engine.models.folder import weight_hashes


def test_nothing_found_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as failure:
        VideoEngine.load(EngineConfig(model=str(tmp_path / "nowhere")))
    words = str(failure.value)
    assert "motion-small" in words
    assert "no such folder" in words
    assert "owner/name" in words


def test_folder_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"holds neither model_index\.json"):
        VideoEngine.load(EngineConfig(model=str(tmp_path)))


def test_hub_id_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*_: object, **__: object) -> str:
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound, match="hub id some/model: LocalEntryNotFoundError"):
        VideoEngine.load(EngineConfig(model="some/model"))


def test_hub_snapshot_takes_safetensors_and_no_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    import huggingface_hub

    asked: dict[str, object] = {}

    def snapshot(hub_id: str, **options: object) -> str:
        asked.update(options, hub_id=hub_id)
        return str(tiny_folder("wan5b"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.chdir(tmp_path)
    engine = VideoEngine.load(EngineConfig(model="some/model"))
    assert (engine.name, engine.source) == ("model", "some/model")
    assert not {"*.py", "*.bin", "*.pt", "*.ckpt"} & set(asked["allow_patterns"])  # pyright: ignore
    assert "*.safetensors" in asked["allow_patterns"]  # pyright: ignore


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (json.dumps({"_class_name": "StableDiffusionPipeline"}), "StableDiffusionPipeline"),
        ("[]", "not an object"),
        ("{", "not JSON"),
    ],
)
def test_other_families_are_refused_by_name(tmp_path: Path, index: str, words: str) -> None:
    (tmp_path / "model_index.json").write_text(index)
    with pytest.raises(UnsupportedModel, match=words):
        VideoEngine.load(EngineConfig(model=str(tmp_path)))


def test_pickled_weights_are_never_read(tmp_path: Path, tiny_folder: Callable[[str], Path]) -> None:
    for file in tiny_folder("wan5b").rglob("*"):
        target = tmp_path / file.relative_to(tiny_folder("wan5b"))
        if file.is_dir():
            target.mkdir(exist_ok=True)
        elif file.suffix != ".safetensors":
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "transformer" / "diffusion_pytorch_model.bin")
    torch.save({}, tmp_path / "vae" / "diffusion_pytorch_model.bin")
    torch.save({}, tmp_path / "text_encoder" / "pytorch_model.bin")
    with pytest.raises(ModelNotFound, match="cannot be loaded as it stands"):
        VideoEngine.load(EngineConfig(model=str(tmp_path)))


@pytest.mark.parametrize("kind", ["wan5b", "h3"])
@pytest.mark.parametrize("component", ["transformer", "text_encoder"])
def test_damaged_weights_are_named(
    kind: str, component: str, tmp_path: Path, tiny_folder: Callable[[str], Path]
) -> None:
    shutil.copytree(tiny_folder(kind), tmp_path, dirs_exist_ok=True)
    (weights,) = (tmp_path / component).glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelNotFound, match="cannot be loaded as it stands"):
        VideoEngine.load(EngineConfig(model=str(tmp_path)))


def test_h3_folder_that_lacks_a_component(tmp_path: Path) -> None:
    index = json.dumps({"_class_name": "MiniMaxH3ModularPipeline"})
    (tmp_path / "modular_model_index.json").write_text(index)
    with pytest.raises(ModelNotFound, match="audio_vae"):
        VideoEngine.load(EngineConfig(model=str(tmp_path)))


def test_threads_are_set(tiny_folder: Callable[[str], Path]) -> None:
    before = torch.get_num_threads()
    try:
        VideoEngine.load(EngineConfig(model=str(tiny_folder("wan5b")), num_threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_large_weights_are_sampled_over_their_whole_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("video_engine.models.folder._FULL_HASH_BYTES", 1000)
    monkeypatch.setattr("video_engine.models.folder._SAMPLE_BYTES", 10)
    path = tmp_path / "w.safetensors"
    hashes = set()
    for change in (None, 0, 5000, 9999):
        content = bytearray(10_000)
        if change is not None:
            content[change // 10 * 10 : change // 10 * 10 + 200] = b"x" * 200
        path.write_bytes(content[:10_000])
        hashes.add(weight_hashes(tmp_path)["w.safetensors"])
    assert len(hashes) == 4
    assert all(found.startswith("sampled-sha256:") for found in hashes)


@pytest.mark.parametrize("kind", ["wan2.1", "wan5b", "ltx", "h3"])
def test_limits_come_from_the_configs(kind: str, tiny_engine: Callable[..., VideoEngine]) -> None:
    limits = tiny_engine(kind).limits
    expected = {  # side multiple, frame step, frame offset, sound
        "wan2.1": (16, 4, 1, False),
        "wan5b": (32, 4, 1, False),
        "ltx": (32, 4, 1, False),
        "h3": (32, 17, 5, True),
    }[kind]
    found = (limits.side_multiple, limits.frame_step, limits.frame_offset, limits.has_audio)
    assert found == expected
    if kind == "h3":
        assert (limits.min_frames, limits.max_frames) == (22, 345)
        assert limits.min_fps == limits.max_fps == 24.0
        assert limits.default_guidance_scale is None


def test_engine_module_imports_no_model_library() -> None:
    code = (
        "import sys, video_engine.types, video_engine.engine, video_engine.stages.write\n"
        "print([m for m in ('torch', 'diffusers', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
