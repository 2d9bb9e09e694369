"""The text encoder: hashed words to cross-attention tokens.

Legend: B batch, L words, K letter triples of a word, D width.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Self, cast

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from video_engine.models.motion_small.config import TextConfig
from video_engine.models.motion_small.words import PAD_ID, WordIds, encode_words

TENSORS_NAME = "model.safetensors"


class TextEncoder(nn.Module):
    """Sums of hash embeddings per word, one attention layer over words, one pooled token.

    Output: (B, 1 + L, D); token 0 is the pooled prompt, the others are the words. Places without
    a word repeat the pooled prompt: attention that is spread evenly then reads mostly that.
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        dim = config.dim
        self.config = config
        self.stem = nn.Embedding(config.num_stems, dim)
        self.bigram = nn.Embedding(config.num_bigrams, dim)
        self.trigram = nn.Embedding(config.num_trigrams, dim)
        self.position = nn.Parameter(torch.randn(config.max_words, dim) * 0.3)
        self.norm_in = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, config.num_heads, batch_first=True)
        self.norm_mid = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )
        self.pool = nn.Sequential(nn.Linear(2 * dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, stems_BL: Tensor, bigrams_BL: Tensor, trigrams_BLK: Tensor) -> Tensor:
        """Shapes: ids as in WordIds; result (B, 1 + L, D)."""
        is_word_BL1 = (stems_BL != PAD_ID).unsqueeze(-1)
        is_triple_BLK1 = (trigrams_BLK != PAD_ID).unsqueeze(-1)
        num_triples_BL1 = is_triple_BLK1.sum(2).clamp(min=1)
        triples_BLD = (self.trigram(trigrams_BLK) * is_triple_BLK1).sum(2) / num_triples_BL1.sqrt()
        words_BLD = (self.stem(stems_BL) + 0.5 * triples_BLD) * is_word_BL1
        pairs_BLD = self.bigram(bigrams_BL) * (bigrams_BL != PAD_ID).unsqueeze(-1)
        num_words_B1 = is_word_BL1.sum(1).clamp(min=1).sqrt()
        sums_BD = torch.cat([words_BLD.sum(1), pairs_BLD.sum(1)], -1) / num_words_B1
        x_BLD = words_BLD + 0.5 * pairs_BLD + self.position
        normed_BLD = self.norm_in(x_BLD)
        attended_BLD, _ = self.attention(normed_BLD, normed_BLD, normed_BLD, need_weights=False)
        x_BLD = x_BLD + attended_BLD
        x_BLD = x_BLD + self.feed_forward(self.norm_mid(x_BLD))
        pooled_B1D = self.pool(sums_BD).unsqueeze(1)
        return torch.cat([pooled_B1D, torch.where(is_word_BL1, x_BLD, pooled_B1D)], 1)

    def encode(self, prompts: list[str | None]) -> Tensor:
        """Tokens (B, 1 + L, D) of the prompts; None is the null prompt of guidance."""
        return self(*ids_to_tensors(encode_words(prompts, self.config)))

    @classmethod
    def from_folder(cls, folder: Path) -> Self:
        """Loads config.json and the tensors, in float32."""
        encoder = cls(TextConfig(**json.loads((folder / "config.json").read_text())))
        tensors = load_file(folder / TENSORS_NAME)
        encoder.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return encoder.eval().requires_grad_(False)

    def config_json(self) -> str:
        """The text of config.json."""
        return json.dumps(asdict(self.config), indent=2) + "\n"


def ids_to_tensors(ids: WordIds) -> tuple[Tensor, Tensor, Tensor]:
    """The three id arrays as tensors, in ``forward``'s order."""
    return cast(tuple[Tensor, Tensor, Tensor], tuple(torch.from_numpy(part) for part in ids))
