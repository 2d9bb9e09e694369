"""What the kernels' room refuses.

KernelError
├── ShapeError (ValueError)     a tensor's shape, dtype or device is not the documented one
├── ImplUnavailable             an implementation asked for by name cannot serve the case
├── NativeBuildFailed           the C++ kernels cannot be built or loaded here
├── NoImplementation            no implementation of the op serves the case at all
└── StrictRefusal               a choice fell below the tier that `--strict` asks for
"""

from __future__ import annotations


class KernelError(Exception):
    """Root of the room's errors."""


class ShapeError(KernelError, ValueError):
    """A tensor is not what the op's docstring says; the message names both shapes."""


class ImplUnavailable(KernelError):
    """An explicit request cannot be met; the message lists every unmet requirement."""


class NativeBuildFailed(KernelError):
    """No compiler, or it failed; the message says what was tried. The torch forms run instead."""


class NoImplementation(KernelError):
    """Nothing covers this case on this device; the message lists what was tried and why not."""


class StrictRefusal(KernelError):
    """A decision lies below the floor; the message names layer, reason and remedy."""
