"""Monophone mixtures of Gaussians, trained from transcripts alone, and aligned speech.

Log-mel energies that are neighbours rise and fall together. The discrete cosine
transform makes 13 cepstral coefficients of 40 energies that hardly do (MFCC), which
diagonal Gaussians can model. It is linear, so that the derivatives of the energies
become those of the cepstra.

A flat start divides each utterance evenly among the states of its words. Then passes of
Viterbi alignment and of re-estimation follow, and the mixtures double in size several
times (Kaldi's train_mono.sh does the same with other numbers).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import whole_file
from espnet_distopt.recipes.hmm.alignments import PdfCounts, Pdfs
from espnet_distopt.recipes.hmm.graph import HmmSet, expand, linear_grammar
from espnet_distopt.recipes.hmm.language import SILENCE, Lexicon, PhoneStates
from espnet_distopt.recipes.hmm.search import Search, best_path

_CEPSTRA = 13
_STREAMS = 3
"""The energies, their deltas, and the deltas of those."""


def cepstra(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return cepstra with deltas, shape (frames, 39), of features (frames, 3 M).

    Raises:
        InputError: The number of dimensions is not three times that of mel energies.
    """
    mels, rest = divmod(features.shape[1], _STREAMS)
    if rest or mels < _CEPSTRA:
        raise InputError(
            f"features of {features.shape[1]} dimensions: expected log-mel energies, "
            "their deltas, and the deltas of those"
        )
    centres = np.arange(mels) + 0.5
    basis = np.cos(np.pi / mels * np.outer(centres, np.arange(_CEPSTRA)))
    basis *= np.sqrt(2 / mels)
    streams = features.reshape(len(features), _STREAMS, mels) @ basis
    return np.asarray(streams.reshape(len(features), -1), np.float32)


_LEAST_VARIANCE = 1e-2
_LEAST_FRAMES = 10.0
"""A component with fewer frames than this is switched off, as its variance says
nothing."""
_SPLIT = 0.2
"""How far the halves of a component move apart, in standard deviations."""
_BLOCK = 4096
"""The number of frames whose statistics are computed together, which bounds memory."""


@dataclass
class Mixtures:
    """P mixtures of M Gaussians each over D dimensions.

    Attributes:
        log_weights: Shape (P, M); minus infinity for a component that is switched off.
        means: Shape (P, M, D).
        variances: Shape (P, M, D).
    """

    log_weights: Tensor
    means: Tensor
    variances: Tensor

    @classmethod
    def flat(cls, pdfs: int, dimensions: int) -> "Mixtures":
        """Return one standard Gaussian for each pdf."""
        return cls(
            torch.zeros(pdfs, 1),
            torch.zeros(pdfs, 1, dimensions),
            torch.ones(pdfs, 1, dimensions),
        )

    def components(self, features: Tensor) -> Tensor:
        """Return the log likelihood of each component, (T, P, M), for (T, D).

        It costs 4 T P M D floating-point operations.
        """
        pdfs, size, dimensions = self.means.shape
        precisions = 1 / self.variances
        constants = self.log_weights - 0.5 * (
            dimensions * math.log(2 * math.pi)
            + self.variances.log().sum(2)
            + (self.means**2 * precisions).sum(2)
        )
        linear = features @ (self.means * precisions).reshape(-1, dimensions).T
        square = features**2 @ precisions.reshape(-1, dimensions).T
        return (linear - 0.5 * square).reshape(-1, pdfs, size) + constants

    def scores(self, features: Tensor) -> Tensor:
        """Return the log likelihood of each pdf, shape (T, P), for features (T, D)."""
        return self.components(features).logsumexp(2)

    def split(self) -> None:
        """Double the number of components: each moves to both sides of its mean."""
        moved = _SPLIT * self.variances.sqrt()
        self.means = torch.cat([self.means - moved, self.means + moved], 1)
        self.variances = torch.cat([self.variances, self.variances], 1)
        halves = self.log_weights - math.log(2)
        self.log_weights = torch.cat([halves, halves], 1)


class Statistics:
    """The sums over frames from which the next mixtures are estimated (EM)."""

    def __init__(self, mixtures: Mixtures) -> None:
        self._mixtures = mixtures
        pdfs, size, dimensions = mixtures.means.shape
        self._frames = torch.zeros(pdfs, size, dtype=torch.float64)
        self._first = torch.zeros(pdfs, size * dimensions, dtype=torch.float64)
        self._second = torch.zeros_like(self._first)
        self.log_likelihood = 0.0
        """The sum of the log likelihoods of the frames."""

    def add(self, features: Tensor, pdfs: Tensor) -> None:
        """Add frames.

        Args:
            features: Shape (T, D).
            pdfs: The pdf of each frame, shape (T,), int64.
        """
        for first in range(0, len(pdfs), _BLOCK):
            x, pdf = features[first : first + _BLOCK], pdfs[first : first + _BLOCK]
            every = self._mixtures.components(x)
            own = every[torch.arange(len(x)), pdf]
            total = own.logsumexp(1, keepdim=True)
            self.log_likelihood += float(total.sum())
            share = (own - total).exp()
            weighted = share[:, :, None] * x[:, None]
            self._frames.index_add_(0, pdf, share.double())
            self._first.index_add_(0, pdf, weighted.flatten(1).double())
            square = weighted * x[:, None]
            self._second.index_add_(0, pdf, square.flatten(1).double())

    def estimate(self) -> Mixtures:
        """Return the mixtures of the greatest likelihood.

        A component with too few frames is switched off, unless its pdf would have no
        other; a pdf without frames stays as it is.
        """
        old = self._mixtures
        frames = self._frames.float()
        counts = frames.clamp(min=1e-3)[:, :, None]
        means = self._first.float().view_as(old.means) / counts
        second = self._second.float().view_as(old.means) / counts
        variances = (second - means**2).clamp(min=_LEAST_VARIANCE)
        enough = frames >= _LEAST_FRAMES
        best = frames == frames.amax(1, keepdim=True)
        kept = (enough | best)[:, :, None] & (frames > 1)[:, :, None]
        share = torch.where(enough | best, frames, torch.zeros(()))
        weights = share / share.sum(1, keepdim=True).clamp(min=1e-3)
        seen = frames.sum(1, keepdim=True) > 1
        return Mixtures(
            torch.where(seen, weights.log(), old.log_weights),
            torch.where(kept, means, old.means),
            torch.where(kept, variances, old.variances),
        )


def write_gmm(
    path: Path, mixtures: Mixtures, stay: NDArray[np.float64], states: Sequence[str]
) -> None:
    """Write mixtures of P pdfs, whole or not at all.

    `stay` is the probability of staying in each state, shape (P,).
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


_ALIGNING = Search(acoustic_scale=1.0, beam=200.0)

Features = Mapping[str, NDArray[np.float32]]
"""Utterance -> its features, shape (frames, dimensions)."""


@dataclass(frozen=True)
class FlatStart:
    """The options of the training.

    Attributes:
        doublings: How often the mixtures double in size; the passes between two
            doublings are equally many, and the rest follows the last one.
    """

    passes: int = 20
    doublings: int = 4

    def __post_init__(self) -> None:
        if self.passes < 1 or not 0 <= self.doublings < self.passes:
            raise InputError(
                f"{self.passes} passes with {self.doublings} doublings: expected a "
                "pass at least, and fewer doublings than passes"
            )

    def doubles_after(self, number: int) -> bool:
        """Return whether the mixtures double after pass `number`, from 1."""
        every = max(1, self.passes // (self.doublings + 1))
        return number % every == 0 and number // every <= self.doublings


def even_alignment(
    words: Sequence[str], lexicon: Lexicon, states: PhoneStates, frames: int
) -> Pdfs | None:
    """Divide frames evenly among silence, the words, and silence.

    Returns:
        The pdf of each frame, shape (frames,), or None if there are more states than
        frames.
    """
    phones = [phone for word in words for phone in lexicon[word][0]]
    pdfs = [pdf for phone in (SILENCE, *phones, SILENCE) for pdf in states.pdfs(phone)]
    if len(pdfs) > frames:
        return None
    return np.asarray(pdfs, np.int32)[np.arange(frames) * len(pdfs) // frames]


class Aligner:
    """Aligns utterances with their words.

    Attributes:
        stay: The probability of staying in each state for one more frame, by pdf.
    """

    def __init__(self, lexicon: Lexicon, states: PhoneStates) -> None:
        self._lexicon = lexicon
        self._states = states
        self.stay: Sequence[float] = [0.5] * len(states)

    def align(self, words: Sequence[str], scores: NDArray[np.float32]) -> Pdfs | None:
        """Return the pdf of each frame, or None if the words do not fit.

        The scores are the log likelihoods of the pdfs, shape (frames, pdfs).
        """
        models = HmmSet(self._states, self.stay)
        graph = expand(linear_grammar(words), self._lexicon, models)
        found = best_path(graph, scores, _ALIGNING)
        return found.pdfs if found else None


def train(
    features: Features,
    texts: Mapping[str, Sequence[str]],
    lexicon: Lexicon,
    states: PhoneStates,
    options: FlatStart,
    progress: Callable[[int, float], None] = lambda number, value: None,
) -> tuple[Mixtures, Aligner]:
    """Train mixtures from a flat start.

    Args:
        features: The features of the utterances to train on.
        texts: Utterance -> its words, which are all in the lexicon.
        lexicon: The pronunciations.
        states: The states of the phones.
        options: How long to train.
        progress: Called after each pass with its number and the mean log likelihood of
            a frame.

    Returns:
        The mixtures, and an aligner that knows how long one stays in each state.

    Raises:
        InputError: No utterance is as long as its words need, or kaldi-decoder is not
            installed.
    """
    dimensions = next(iter(features.values())).shape[1] if features else 0
    even = {
        name: even_alignment(texts[name], lexicon, states, len(matrix))
        for name, matrix in features.items()
    }
    alignments = {name: pdfs for name, pdfs in even.items() if pdfs is not None}
    if not alignments:
        raise InputError(
            f"none of {len(features)} utterances has as many frames as the states of "
            "its words"
        )
    flat = Mixtures.flat(len(states), dimensions)
    mixtures, _ = _estimate(flat, features, alignments)
    aligner = Aligner(lexicon, states)
    for number in range(1, options.passes + 1):
        found = align_all(aligner, mixtures, features, texts)
        if not found:
            raise InputError("no utterance can be aligned with its words")
        aligner.stay = PdfCounts.of(found.values(), len(states)).stay().tolist()
        mixtures, value = _estimate(mixtures, features, found)
        progress(number, value)
        if options.doubles_after(number):
            mixtures.split()
    return mixtures, aligner


def align_all(
    aligner: Aligner,
    mixtures: Mixtures,
    features: Features,
    texts: Mapping[str, Sequence[str]],
) -> dict[str, Pdfs]:
    """Align utterances; those that do not fit their words are left out."""
    found = {}
    for name, matrix in features.items():
        scores = mixtures.scores(torch.from_numpy(matrix)).numpy()
        pdfs = aligner.align(texts[name], scores)
        if pdfs is not None:
            found[name] = pdfs
    return found


def _estimate(
    mixtures: Mixtures, features: Features, alignments: Mapping[str, Pdfs]
) -> tuple[Mixtures, float]:
    """Return the next mixtures, and the mean log likelihood of a frame before."""
    statistics = Statistics(mixtures)
    frames = 0
    for name, pdfs in alignments.items():
        frames += len(pdfs)
        statistics.add(
            torch.from_numpy(features[name]), torch.from_numpy(pdfs.astype(np.int64))
        )
    return statistics.estimate(), statistics.log_likelihood / frames
