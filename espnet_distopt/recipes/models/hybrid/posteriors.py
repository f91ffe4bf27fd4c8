"""Computes the scores of HMM states with a trained acoustic model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.quick_import import importing_espnet
from espnet_distopt.recipes.corpora.kaldi.arks import read_matrix
from espnet_distopt.recipes.hmm.alignments import log_priors, read_numbers
from espnet_distopt.recipes.models.trained import load_ctc_model

# ESPnet prints while it is imported; standard output is kept for the program's result.
with importing_espnet():
    from espnet_distopt.recipes.models.hybrid.task import HybridTask


class PosteriorModel:
    """A trained acoustic model, for inference on CPU.

    Attributes:
        states: The name of each pdf.
    """

    def __init__(self, config: Path, model: Path) -> None:
        """Load an experiment's `config.yaml` and one of its models.

        Raises:
            InputError: The model does not fit the configuration.
        """
        self._model, args = load_ctc_model(HybridTask, config, model, "decode")
        self._input_size: int = args.input_size
        self.states: list[str] = list(self._model.token_list)
        self.pdfs = len(self.states)

    @torch.no_grad()
    def log_posteriors(
        self, feats: Mapping[str, str]
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each utterance with its log posteriors, shape (frames, pdfs).

        The model reads an utterance as a whole, not in chunks.

        Args:
            feats: Utterance -> its features as `path.ark:offset`.

        Raises:
            InputError: Features cannot be read, or are of another size than in the
                training.
        """
        for name, location in feats.items():
            matrix = read_matrix(location)
            if matrix.shape[1] != self._input_size:
                raise InputError(
                    f"{name}: features of {matrix.shape[1]} dimensions for a model of "
                    f"{self._input_size}"
                )
            speech: Any = torch.tensor(matrix)[None]
            scores = self._model.scores(speech, torch.tensor([len(matrix)]))
            yield name, scores[0].log_softmax(-1).numpy()

    def scaled_likelihoods(
        self, feats: Mapping[str, str], counts: Path, prior_scale: float = 1.0
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield each utterance with log posteriors minus log priors, (frames, pdfs).

        By Bayes's rule these are log likelihoods, but for a constant of each frame.

        Args:
            feats: Utterance -> its features as `path.ark:offset`.
            counts: The file with the number of frames of each pdf in the training set.
            prior_scale: The factor of the log priors.

        Raises:
            InputError: Features or counts cannot be read, or are of another size than
                the model.
        """
        frames = read_numbers(counts, self.pdfs).astype(np.int64)
        priors = np.float32(prior_scale) * log_priors(frames)
        for name, log_posteriors in self.log_posteriors(feats):
            yield name, log_posteriors - priors
