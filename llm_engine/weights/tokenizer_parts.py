"""What a tokenizer is made of, and reading it from a model's folder.

Source: the tokenizer files of Hugging Face: tokenizer.json, tokenizer_config.json,
special_tokens_map.json, chat_template.jinja.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer, processors

from llm_engine.errors import UnsupportedModel

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@dataclass(frozen=True, slots=True)
class TokenizerParts:
    """A fast tokenizer, its special tokens by role (bos_token, …), and its chat template."""

    backend: Tokenizer
    special_tokens: Mapping[str, str]
    chat_template: str | None


def read_folder(folder: Path) -> TokenizerParts:
    """Read `tokenizer.json` and what the files beside it say.

    Which special tokens go around a text is told by `tokenizer.json` alone, as in transformers.

    Raises: UnsupportedModel if there is no `tokenizer.json`, or a file is broken.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{folder} has no tokenizer.json: save the tokenizer as a fast one beside the weights"
        )
    try:
        backend = Tokenizer.from_file(str(path))
        settings = _read_settings(folder)
    except Exception as error:
        # The tokenizers library raises bare Exceptions for a broken file.
        raise UnsupportedModel(f"cannot read the tokenizer in {folder}: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    special_tokens = {
        name: _content(settings[name]) for name in SPECIAL_NAMES if settings.get(name) is not None
    }
    _add_missing(backend, settings, special_tokens)
    return TokenizerParts(backend, special_tokens, _chat_template(folder, settings))


def frame(backend: Tokenizer, *, bos: str | None, eos: str | None) -> None:
    """Put these special tokens around a text that is encoded with special tokens."""
    around = [token for token in (bos, eos) if token is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=" ".join(part for part in (bos, "$A", eos) if part is not None),
        special_tokens=[(token, backend.token_to_id(token)) for token in around],
    )


def _read_settings(folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings.update(json.loads((folder / name).read_text(encoding="utf-8")))
    return settings


def _content(token: str | Mapping[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _add_missing(
    backend: Tokenizer, settings: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> None:
    """Tokens that only the settings know: those of `added_tokens_decoder`, then the special."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    decoder = cast(dict[str, dict[str, Any]], settings.get("added_tokens_decoder") or {})
    for _, token in sorted(decoder.items(), key=lambda item: int(item[0])):
        content = str(token["content"])
        if content not in known:
            flags = {name: bool(token[name]) for name in _FLAGS if name in token}
            backend.add_tokens([AddedToken(content, **flags)])
            known.add(content)
    missing = [token for token in dict.fromkeys(special_tokens.values()) if token not in known]
    backend.add_special_tokens([AddedToken(token, special=True) for token in missing])


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The file beside the tokenizer, or the setting; of several named ones, the default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in cast(list[dict[str, str]], template)}
        template = named.get("default")
    return None if template is None else str(template)
