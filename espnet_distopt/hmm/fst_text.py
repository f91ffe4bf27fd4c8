"""Writes a graph to search as OpenFst's text, which kaldifst compiles."""

import io
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from espnet_distopt.errors import InputError


@dataclass
class Graph:
    """A graph to search.

    An arc's input label is a column of the decoder's scores, plus 1. There are two
    columns for each pdf, with the same score:

    - column `pdf` for an arc within a word, or in silence;
    - column `P + pdf`, with P the number of pdfs, for the arc that enters a word. So
      the sequence of input labels alone shows where words begin.

    Attributes:
        fst: kaldifst's `StdVectorFst`.
        words: The words by their label; label 0 means no word.
        pdfs: The number of pdfs, P.
        silent: The pdfs below this one belong to no word.
    """

    fst: Any
    words: list[str]
    pdfs: int
    silent: int


class FstText:
    """The states and the arcs of a graph.

    The start is the source of the first arc that is written.
    """

    def __init__(self) -> None:
        self._count = 0
        # With a list of lines, a graph would take half as much memory again.
        self._text = io.StringIO()

    def state(self) -> int:
        """Return a new state."""
        self._count += 1
        return self._count - 1

    def arc(
        self, source: int, target: int, ilabel: int, olabel: int, cost: float = 0.0
    ) -> None:
        """Write an arc; label 0 takes no frame, and tells no word."""
        self._text.write(f"{source} {target} {ilabel} {olabel} {cost:.6f}\n")

    def final(self, state: int, cost: float) -> None:
        """Let a path end in a state."""
        self._text.write(f"{state} {cost:.6f}\n")

    def compile(self) -> Any:
        """Return the graph as kaldifst's `StdVectorFst`.

        Raises:
            InputError: kaldifst is not installed.
        """
        library = import_library("kaldifst")
        text = self._text.getvalue()
        self._text.close()
        return library.compile(text, acceptor=False)


def import_library(name: str) -> Any:
    """Return `kaldifst` or `kaldi_decoder`, which are optional.

    Raises:
        InputError: It is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        raise InputError(
            "a search in a graph of words needs kaldifst and kaldi-decoder: "
            "pip install kaldifst kaldi-decoder"
        ) from None
