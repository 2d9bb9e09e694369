"""Names for the arrays of motion-small.

Their element type stays open: the declared types of NumPy and of OpenCV do not agree on it.
"""

from typing import Any, TypeAlias

from numpy.typing import NDArray

# float32 between modules; functions may work in float64 inside
FloatArray: TypeAlias = NDArray[Any]
# RGB, uint8, (H, W, 3); a clip is (F, H, W, 3)
Picture: TypeAlias = NDArray[Any]
