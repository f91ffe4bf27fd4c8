"""Kaldi arks of matrices, by kaldiio or omniio."""

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.kaldi.arks import ArkWriter, ark_library
from espnet_distopt.errors import InputError

_ONE_BYTE_ZERO_TO_ONE = 7  # Kaldi's compression method for values in [0, 1]


class MatrixArkWriter(ArkWriter):
    """Writes matrices of values in [0, 1]: `ark[key] = matrix`.

    Each value takes a byte, in steps of 1/255; readers get float32.
    """

    def __setitem__(self, key: str, matrix: NDArray[np.float32]) -> None:
        if matrix.ndim != 2 or not 0 <= matrix.min() <= matrix.max() <= 1:
            raise ValueError(f"{key}: expected a matrix of values in [0, 1]")
        self._append(key, matrix, compression_method=_ONE_BYTE_ZERO_TO_ONE)


class FloatArkWriter(ArkWriter):
    """Writes matrices of 32-bit floats: `ark[key] = matrix`."""

    def __setitem__(self, key: str, matrix: NDArray[np.float32]) -> None:
        self._append(key, matrix.astype(np.float32, copy=False))


def read_matrix(location: str) -> NDArray[np.float32]:
    """Read one matrix, shape (rows, columns).

    Args:
        location: `path.ark:offset`, with the offset in bytes.

    Raises:
        InputError: The ark does not exist, or has no whole matrix at this place.
    """
    try:
        matrix = ark_library().load_mat(location)
    except OSError as error:
        raise InputError(
            f"{location}: cannot be read: {error.strerror or error}"
        ) from None
    except Exception as error:  # the libraries raise many kinds, even AssertionError
        raise InputError(f"{location}: no whole matrix: {error}") from None
    if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
        raise InputError(f"{location}: expected a matrix")
    return matrix.astype(np.float32, copy=False)
