"""The facts of a plan as plain values, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernels.hardware.machine import Machine
    from kernels.layer_groups import ModelShape, RowGroup


def model_dict(model: ModelShape) -> dict[str, Any]:
    """Name, family, weights, and what a sequence takes."""
    return {
        "name": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "weight_bytes": model.weight_bytes,
        "cache_bytes_per_token": model.cache_bytes_per_token,
        "cache_bytes_per_sequence": sum(rows.bytes_per_sequence for rows in model.rows),
        "notes": list(model.notes),
    }


def machine_dict(machine: Machine) -> dict[str, Any]:
    """Everything known of the machine."""
    return {**asdict(machine), "num_devices": machine.num_devices}


def rows_dict(rows: RowGroup) -> dict[str, Any]:
    """One group of cached rows with its page."""
    return {
        **asdict(rows),
        "bytes_per_token": rows.bytes_per_token,
        "bytes_per_sequence": rows.bytes_per_sequence,
        "rows_per_page": rows.rows_per_page,
    }
