"""Counts words by NIST's sclite (SCTK), whichever way it is installed."""

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.programs import complaint, run, sclite_version
from espnet_distopt.scoring.trn import Transcripts, format_trn


@dataclass(frozen=True)
class Sclite:
    """An installed sclite: the command that starts it, and its version."""

    command: tuple[str, ...]
    version: str

    @property
    def label(self) -> str:
        """The name that results carry."""
        return f"sclite {self.version}"

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Align hypothesis and reference, which hold the same utterances, and count.

        Words are equal if they are spelt alike, with their upper and lower case. sclite
        gets numbers in place of them, because it drops what it reads as markup (`;` and
        what follows, `{ a / b }`, `@`), and then counts fewer errors without a word.

        Raises:
            InputError: sclite failed or did not count what it was given.
        """
        with tempfile.TemporaryDirectory(prefix="sclite.") as name:
            paths = Path(name, "ref.trn"), Path(name, "hyp.trn")
            for path, numbered in zip(paths, _numbered(ref, hyp), strict=True):
                path.write_text(format_trn(numbered, {}), encoding="utf-8")
            summary = self._summary(*paths)
        counts = parse_raw_summary(summary)
        expected = len(ref), sum(map(len, ref.values()))
        if (counts.sentences, counts.words) != expected:
            raise InputError(
                f"{self.label} counted {counts.sentences} sentences and "
                f"{counts.words} words, the reference has {expected[0]} and "
                f"{expected[1]}: install another version of SCTK, or use --scorer jiwer"
            )
        return counts

    def _summary(self, ref: Path, hyp: Path) -> str:
        arguments = "-s -i spu_id -r {} trn -h {} trn -o rsum stdout"
        command = [*self.command, *arguments.format(ref.name, hyp.name).split()]
        done = run(command, cwd=ref.parent)
        if done.returncode != 0:
            raise InputError(
                f"{' '.join(self.command)} failed with exit code {done.returncode}: "
                f"{complaint(done)}"
            )
        return done.stdout


def find_sclite(given: str | None = None) -> Sclite | None:
    """Find sclite: where the user says, else `sclite`, else `sctk sclite` on PATH.

    Args:
        given: The path of `sclite` or of Debian's front end `sctk`; None to search.

    Returns:
        The program found, or None if there is none on PATH.

    Raises:
        InputError: `given` is not NIST's sclite.
    """
    if given is not None:
        found = _probe((given,)) or _probe((given, "sclite"))
        if found is None:
            raise InputError(
                f"{given}: not NIST's sclite or sctk (install the package sctk)"
            )
        return found
    # _probe rejects the program of the Python package sctk, which is another one.
    for command in (("sclite",), ("sctk", "sclite")):
        if shutil.which(command[0]) and (found := _probe(command)):
            return found
    return None


def parse_raw_summary(summary: str) -> Counts:
    """Read the `Sum` line of sclite's `-o rsum` report.

    Raises:
        InputError: The report has no such line.
    """
    for line in summary.splitlines():
        if re.match(r"\s*\|\s*Sum\s*\|", line):
            # A third cell has the cross entropy of the confidences, if there are any.
            cells = " ".join(line.split("|")[2:4])
            numbers = [int(number) for number in cells.split()]
            sentences, words, correct, sub, deleted, inserted, _, wrong = numbers
            return Counts(
                sentences=sentences,
                words=words,
                correct=correct,
                substitutions=sub,
                deletions=deleted,
                insertions=inserted,
                sentence_errors=wrong,
            )
    raise InputError("sclite's report has no 'Sum' line: is it sclite 2.4 or later?")


def _numbered(ref: Transcripts, hyp: Transcripts) -> tuple[Transcripts, Transcripts]:
    """Return both with numbers in place of utterances' ids and of words."""
    words: dict[str, str] = {}
    first, second = (
        {
            str(number): [words.setdefault(w, str(len(words))) for w in each[utterance]]
            for number, utterance in enumerate(ref)
        }
        for each in (ref, hyp)
    )
    return first, second


def _probe(command: tuple[str, ...]) -> Sclite | None:
    try:
        version = sclite_version(command)
    except InputError:
        return None
    return Sclite(command, version) if version else None
