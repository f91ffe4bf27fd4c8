"""Stores a trained GMM-HMM: `gmm.npz`, with the probabilities of staying in a state."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import whole_file
from espnet_distopt.hmm.mixtures import Mixtures


def write_gmm(path: Path, mixtures: Mixtures, stay: NDArray[np.float64]) -> None:
    """Write mixtures of P pdfs, and `stay` of shape (P,), whole or not at all."""
    with whole_file(path) as new, new.open("wb") as file:
        np.savez(
            file,
            log_weights=mixtures.log_weights.numpy(),
            means=mixtures.means.numpy(),
            variances=mixtures.variances.numpy(),
            stay=stay,
        )


def read_gmm(path: Path, pdfs: int) -> tuple[Mixtures, list[float]]:
    """Read mixtures, and the probability of staying in each state.

    Raises:
        InputError: The file is not of this kind, or has another number of pdfs.
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
        stay = arrays["stay"].tolist()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file: train the GMM first") from None
    except Exception as error:  # of many kinds: zip, pickle, keys, types
        raise InputError(f"{path}: not a trained GMM: {error}") from None
    if not len(stay) == len(mixtures.means) == pdfs:
        raise InputError(
            f"{path}: {len(mixtures.means)} pdfs, but the lexicon has {pdfs} states: "
            "train the GMM again"
        )
    return mixtures, stay
