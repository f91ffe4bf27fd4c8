"""Transcripts from Kaldi's `text` files, their halves, and sclite's `trn`."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text

ALL = "all"
"""The name of the whole set in results."""


def parse_halves(arguments: Iterable[str]) -> dict[str, str]:
    """Return the regular expression of each half, from arguments `NAME=REGEX`.

    Raises:
        InputError: An argument is malformed, or a name comes twice.
    """
    halves: dict[str, str] = {}
    for argument in arguments:
        name, equals, pattern = argument.partition("=")
        if not (name and equals and pattern) or name == ALL:
            raise InputError(f"--half {argument}: expected NAME=REGEX, as swbd=^sw_")
        if name in halves:
            raise InputError(f"--half {argument}: {name} is given twice")
        halves[name] = pattern
    return halves


def members(name: str, pattern: str, ids: Iterable[str]) -> list[str]:
    """Return the ids in which the half's regular expression is found.

    Raises:
        InputError: The pattern is no regular expression, or no id matches.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InputError(
            f"half {name}: '{pattern}' is no regular expression: {error}"
        ) from None
    ids = list(ids)
    chosen = [each for each in ids if expression.search(each)]
    if not chosen:
        raise InputError(
            f"half {name}: no id matches '{pattern}', an id looks like {ids[0]}"
        )
    return chosen


Transcripts = dict[str, list[str]]
"""The words of each utterance; an empty list if it has none."""


def read_transcripts(path: Path) -> Transcripts:
    """Read a Kaldi `text` file: an utterance id and its words on each line.

    A line that has only an id is an utterance without words.

    Raises:
        InputError: The file is missing, empty or not UTF-8, or an id comes twice.
    """
    transcripts: Transcripts = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        utterance, *words = line.split() or [""]
        if utterance in transcripts:
            raise InputError(f"{path}:{number}: utterance {utterance} comes twice")
        if utterance:
            transcripts[utterance] = words
    return transcripts


def read_utt2spk(path: Path) -> dict[str, str]:
    """Read a Kaldi `utt2spk` file: the speaker of each utterance.

    Raises:
        InputError: The file is missing or not UTF-8, or a line has not two fields.
    """
    speakers: dict[str, str] = {}
    lines = read_text(path, may_be_empty=True).split("\n")
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) == 2:
            speakers[fields[0]] = fields[1]
        elif fields:
            raise InputError(
                f"{path}:{number}: expected 'utterance-id speaker-id', "
                f"found {len(fields)} fields"
            )
    return speakers


def check_same_utterances(
    ref: Transcripts, hyp: Transcripts, ref_path: Path, hyp_path: Path
) -> None:
    """Check that reference and hypothesis hold the same utterances.

    A recognizer writes the id even if it has found no word. So a missing hypothesis is
    the fault of a decoding job, and no deletion.

    Raises:
        InputError: A hypothesis is missing, or one has no reference.
    """
    missing = sorted(ref.keys() - hyp.keys())
    if missing:
        raise InputError(
            f"{hyp_path}: {len(missing)} of {len(ref)} utterances of {ref_path} have "
            f"no hypothesis, the first is {missing[0]}: decode again"
        )
    extra = sorted(hyp.keys() - ref.keys())
    if extra:
        raise InputError(
            f"{hyp_path}: {len(extra)} hypotheses have no reference in {ref_path}, "
            f"the first is {extra[0]}: score against the text that was decoded"
        )


def format_trn(transcripts: Transcripts, speakers: Mapping[str, str]) -> str:
    """Return the transcripts in sclite's trn form: `words (speaker-utterance)`.

    An utterance without a speaker is its own.
    """
    return "".join(
        f"{' '.join(words)} ({speakers.get(utterance, utterance)}-{utterance})\n"
        for utterance, words in sorted(transcripts.items())
    )
