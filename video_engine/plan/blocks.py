"""Op uses that video transformers share. Sizes: S rows, C width, H heads, D head width."""

from __future__ import annotations

from dataclasses import dataclass

from kernels.layer_groups import LayerGroup, OpUse, Phase, layer_range, use


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a sequence in one dtype; makes op uses of that many rows."""

    count: int
    dtype: str

    def linear(self, width: int, depth: int, count: int = 1, rows: int | None = None) -> OpUse:
        """A projection depth -> width of all rows, or of `rows`."""
        sizes = {"M": self.count if rows is None else rows, "N": width, "K": depth}
        return use("gemm", self.dtype, sizes, count=count)

    def norm(self, width: int, count: int = 1, rows: int | None = None) -> OpUse:
        """RMSNorm of each row."""
        sizes = {"T": self.count if rows is None else rows, "D": width}
        return use("rms_norm", self.dtype, sizes, count=count)

    def head_norm(self, heads: int, head_dim: int, count: int) -> OpUse:
        """RMSNorm of each head of each row."""
        return use("rms_norm", self.dtype, {"T": self.count * heads, "D": head_dim}, count=count)

    def modulate(
        self, width: int, norm: str, *, residual: bool = False, table: bool = True
    ) -> OpUse:
        """Gated residual, norm, scale and shift in one pass, rows choosing from a table."""
        options = {
            "norm": norm,
            "residual": "yes" if residual else "none",
            "table": "yes" if table else "none",
        }
        return use("adaln_modulate", self.dtype, {"T": self.count, "C": width}, options=options)

    def rotary(self, heads: int, head_dim: int, rotated: int, style: str) -> OpUse:
        """Rotation of queries and keys; nothing is cached."""
        sizes = {"T": self.count, "H": heads, "K": heads, "D": head_dim, "R": rotated, "page": 0}
        options = {"style": style, "qk_norm": "none", "cache": "none"}
        return use("rotary_insert", self.dtype, sizes, options=options)

    def attention(self, heads: int, head_dim: int, keys: int | None = None) -> OpUse:
        """Every row attends to all rows, or to `keys` rows of text."""
        seen = self.count if keys is None else keys
        sizes = {"S": self.count, "N": seen, "H": heads, "D": head_dim}
        return use("full_attention", self.dtype, sizes)


def blocks(name: str, num: int, uses: tuple[OpUse, ...]) -> LayerGroup:
    """`num` equal blocks, named with their range."""
    layers = tuple(range(num))
    return LayerGroup(name=f"{name} {layer_range(layers)}", layers=layers, uses=uses)


def network(op: str, name: str, rows: int, weights: int, dtype: str) -> LayerGroup:
    """A whole network outside the transformer, taken as one op."""
    uses = (use(op, dtype, {"T": rows, "P": weights}),)
    return LayerGroup(name=name, layers=(), uses=uses)


def phase(name: str, rows: int, groups: tuple[LayerGroup, ...]) -> Phase:
    """A stage of one clip."""
    return Phase(name=name, rows=rows, context=rows, batch=1, groups=groups)
