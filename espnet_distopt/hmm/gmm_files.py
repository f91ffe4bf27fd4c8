"""Stores a trained GMM-HMM: `gmm.npz`, with the names of its states.

It has the probabilities of staying in each state, too.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import whole_file
from espnet_distopt.hmm.mixtures import Mixtures


def write_gmm(
    path: Path,
    mixtures: Mixtures,
    stay: NDArray[np.float64],
    states: Sequence[str],
) -> None:
    """Write mixtures of P pdfs, whole or not at all.

    Args:
        path: The file to write.
        mixtures: The mixtures.
        stay: The probability of staying in each state, shape (P,).
        states: The names of the P states.
    """
    with whole_file(path) as new, new.open("wb") as file:
        np.savez(
            file,
            log_weights=mixtures.log_weights.numpy(),
            means=mixtures.means.numpy(),
            variances=mixtures.variances.numpy(),
            stay=stay,
            states=np.array(states, np.str_),
        )


def read_gmm(path: Path, states: Sequence[str]) -> tuple[Mixtures, list[float]]:
    """Read mixtures, and the probability of staying in each state.

    Args:
        path: The file.
        states: The names of the lexicon's states.

    Raises:
        InputError: The file is not of this kind, or is of other states.
    """
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        mixtures = Mixtures(
            *(
                torch.from_numpy(arrays[name])
                for name in ("log_weights", "means", "variances")
            )
        )
        stay, names = arrays["stay"].tolist(), arrays["states"].tolist()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: train the GMM first") from None
    except Exception as error:  # of many kinds: zip, pickle, keys, types
        raise InputError(
            f"{path}: not a trained GMM: {error}: train it again"
        ) from None
    if not len(stay) == len(mixtures.means) == len(states) or names != list(states):
        raise InputError(
            f"{path}: the GMM has other states than the lexicon: train the GMM again "
            "(in a recipe: from --stage 10)"
        )
    return mixtures, stay
