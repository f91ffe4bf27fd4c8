"""Trains monophone mixtures from transcripts alone, and aligns speech with them.

A flat start divides each utterance evenly among the states of its words. Then passes of
Viterbi alignment and of re-estimation follow, and the mixtures double in size several
times (Kaldi's train_mono.sh does the same with other numbers).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.hmm.alignments import PdfCounts, Pdfs
from espnet_distopt.hmm.grammar import linear_grammar
from espnet_distopt.hmm.graph import HmmSet, expand
from espnet_distopt.hmm.lexicon import SILENCE, Lexicon
from espnet_distopt.hmm.mixtures import Mixtures, Statistics
from espnet_distopt.hmm.search import Search, best_path
from espnet_distopt.hmm.states import PhoneStates

_ALIGNING = Search(acoustic_scale=1.0, beam=200.0)

Features = Mapping[str, NDArray[np.float32]]
"""Utterance -> its features, shape (frames, dimensions)."""


@dataclass(frozen=True)
class FlatStart:
    """The options of the training.

    Attributes:
        passes: The number of passes of alignment and re-estimation.
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

    Args:
        lexicon: The pronunciations of the words.
        states: The states of the phones.
    """

    def __init__(self, lexicon: Lexicon, states: PhoneStates) -> None:
        self._lexicon = lexicon
        self._states = states
        self._stay: Sequence[float] = [0.5] * len(states)

    @property
    def stay(self) -> Sequence[float]:
        """The probability of staying in each state for one more frame, by pdf."""
        return self._stay

    def move(self, stay: Sequence[float]) -> None:
        """Set the probabilities of staying in each state, by pdf."""
        self._stay = stay

    def align(self, words: Sequence[str], scores: NDArray[np.float32]) -> Pdfs | None:
        """Return the pdf of each frame, or None if the words do not fit.

        Args:
            words: The words of the utterance.
            scores: The log likelihood of each pdf, shape (frames, pdfs).
        """
        models = HmmSet(self._states, self._stay)
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
    alignments: dict[str, Pdfs] = {}
    for name, matrix in features.items():
        even = even_alignment(texts[name], lexicon, states, len(matrix))
        if even is not None:
            alignments[name] = even
    if not alignments:
        raise InputError(
            f"none of {len(features)} utterances has as many frames as the states of "
            "its words"
        )
    mixtures = _estimate(Mixtures.flat(len(states), dimensions), features, alignments)[
        0
    ]
    aligner = Aligner(lexicon, states)
    for number in range(1, options.passes + 1):
        found = align_all(aligner, mixtures, features, texts)
        if not found:
            raise InputError("no utterance can be aligned with its words")
        aligner.move(PdfCounts.of(found.values(), len(states)).stay().tolist())
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
