"""The array types that every table here is made of."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatColumn: TypeAlias = NDArray[np.float64]
IntColumn: TypeAlias = NDArray[np.int64]
BoolColumn: TypeAlias = NDArray[np.bool_]
FloatMatrix: TypeAlias = NDArray[np.float64]
IntMatrix: TypeAlias = NDArray[np.int64]
BoolMatrix: TypeAlias = NDArray[np.bool_]
FloatCube: TypeAlias = NDArray[np.float64]
