"""Finds the best path through a graph with kaldi-decoder's FasterDecoder.

The scores of a frame are log likelihoods, or log posteriors minus log priors, which
differ from them by a constant of the frame.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.hmm.graph import Graph, import_library

_WIDER = 10
"""How many times as wide the second search is for what the first one has lost."""

_MIN_ACTIVE = 20
"""The number of paths that are kept at a frame even beyond the beam. This is Kaldi's
default; it must be below `Search.max_active`."""


@dataclass(frozen=True)
class Search:
    """The options of a search.

    Attributes:
        acoustic_scale: The factor of the scores, which makes them comparable with the
            costs of the graph: neighbouring frames are not independent.
        beam: Paths that cost more than the best one plus this are dropped.
        max_active: The greatest number of paths that are kept at a frame, at least 2.
    """

    acoustic_scale: float = 0.1
    beam: float = 14.0
    max_active: int = 7000

    def __post_init__(self) -> None:
        for name, least in (("acoustic_scale", 0), ("beam", 0), ("max_active", 1)):
            value = getattr(self, name)
            if not value > least:
                raise InputError(f"{name} must be above {least}, not {value}")


@dataclass(frozen=True)
class WordSearch(Search):
    """The options of a search of words, which are those of `conf/decode_words.yaml`.

    Attributes:
        word_penalty: The cost of each word beside that of the n-gram; above 0, it
            favours short texts.
    """

    word_penalty: float = 0.0


@dataclass(frozen=True)
class Decoding(WordSearch):
    """The options of a hybrid system, which are those of `conf/decode_hybrid.yaml`.

    Attributes:
        prior_scale: How much of the log priors is taken from a network's log
            posteriors; 1 makes likelihoods of them, by Bayes's rule.
    """

    prior_scale: float = 1.0


@dataclass(frozen=True)
class BestPath:
    """The best path through a graph.

    Attributes:
        pdfs: The pdf of each frame, shape (frames,).
        words: Each word, its first frame, and its end: the frame after its last one.
    """

    pdfs: NDArray[np.int32]
    words: list[tuple[str, int, int]]


def best_path(
    graph: Graph, scores: NDArray[np.float32], search: Search
) -> BestPath | None:
    """Return the best path, or None if none reaches an end.

    If no path within the beam does, the search is repeated with a beam ten times as
    wide, and ten times as many paths.

    The scores are those of each pdf at each frame, shape (frames, pdfs).
    """
    if len(scores) == 0:
        return None
    wider = replace(
        search, beam=_WIDER * search.beam, max_active=_WIDER * search.max_active
    )
    return _best_within(graph, scores, search) or _best_within(graph, scores, wider)


def _best_within(
    graph: Graph, scores: NDArray[np.float32], search: Search
) -> BestPath | None:
    decoder = _library()
    both = np.concatenate([scores, scores], axis=1) * np.float32(search.acoustic_scale)
    options = decoder.FasterDecoderOptions(
        beam=search.beam,
        max_active=search.max_active,
        min_active=min(_MIN_ACTIVE, search.max_active - 1),
    )
    run = decoder.FasterDecoder(graph.fst, options)
    run.decode(decoder.DecodableCtc(np.ascontiguousarray(both, np.float32)))
    if not run.reached_final():
        return None
    found, lattice = run.get_best_path()
    if not found:
        return None
    labels, words = _labels(lattice)
    starts = [frame for frame, label in enumerate(labels) if label > graph.pdfs]
    pdfs = (np.asarray(labels, np.int32) - 1) % graph.pdfs
    stops = [*starts, len(pdfs)][1:]
    ends = [
        start + 1 + int(np.flatnonzero(pdfs[start:stop] >= graph.silent)[-1])
        for start, stop in zip(starts, stops, strict=True)
    ]
    names = [graph.words[word] for word in words]
    return BestPath(pdfs, list(zip(names, starts, ends, strict=True)))


def _labels(lattice: Any) -> tuple[list[int], list[int]]:
    import kaldifst

    found = kaldifst.get_linear_symbol_sequence(lattice)
    return list(found[1]), list(found[2])


def _library() -> Any:
    import_library("kaldifst")  # kaldi_decoder returns objects of it.
    return import_library("kaldi_decoder")
