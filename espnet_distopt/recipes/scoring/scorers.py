"""Counts errors by NIST's programs (SCTK), or by jiwer.

- sclite counts words of transcripts.
- hubscr counts words of a CTM, as the Hub5 evaluations do. It maps reference and
  hypothesis by the rules of a GLM. Then sclite aligns them, and knows optional words
  (`(uh)`), alternatives (`{ a / b }`) and word fragments.
- jiwer counts words where SCTK is not installed, and characters of text lines. It
  minimises the number of errors. sclite weighs a substitution 4 and a deletion or
  insertion 3, so on long misrecognized stretches it divides the errors differently and,
  rarely, reports more of them: five substitutions against three deletions and three
  insertions. Elsewhere the counts are equal (tests/recipes/scoring).
- jiwer on normalised text is a cross-check of hubscr. It knows no GLM, only the first
  of alternatives, and no optional words. Its figures come near those of hubscr, but are
  of another kind, and must not stand beside published ones.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.files.writing import write_text
from espnet_distopt.recipes.corpora.hub5.stm import with_capital_channels
from espnet_distopt.recipes.scoring.counts import Counts
from espnet_distopt.recipes.scoring.sides import (
    ConversationSide,
    plain_hypothesis,
    plain_reference,
)
from espnet_distopt.recipes.scoring.trn import Transcripts, format_trn

if TYPE_CHECKING:
    from jiwer import CharacterOutput, WordOutput


def run(
    command: Sequence[str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return its exit code and output.

    Raises:
        InputError: It cannot be started.
    """
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            # In any other locale Perl may complain that it is not installed.
            env=os.environ | {"LC_ALL": "C"},
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
        )
    except OSError as error:
        raise InputError(f"{command[0]}: cannot be run: {error.strerror}") from None


def sclite_version(command: Sequence[str]) -> str | None:
    """Return the version that sclite prints, or None if the command is not sclite."""
    done = run(command)
    version = re.search(r"sclite Version: ([\d.]+)", done.stdout + done.stderr)
    return version.group(1) if version else None


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line that says why a program failed: its first error or last line."""
    said = (done.stdout + "\n" + done.stderr).strip().splitlines()
    errors = [line for line in said if line.lower().startswith("error")]
    return (errors or said[-1:] or ["it said nothing"])[0].strip()


@dataclass(frozen=True)
class Jiwer:
    """The scorer in pure Python, with the same interface as `Sclite`.

    Attributes:
        characters: Whether characters are counted instead of words; `Counts.words` are
            then characters, and the blanks between words are characters, too.
    """

    characters: bool = False

    @property
    def label(self) -> str:
        """The name that results carry."""
        return f"jiwer {version('jiwer')}"

    def count(self, ref: Transcripts, hyp: Transcripts) -> Counts:
        """Align hypothesis and reference, which hold the same utterances, and count.

        Raises:
            InputError: jiwer is not installed.
        """
        utterances = sorted(ref)
        refs, hyps = ([" ".join(side[u]) for u in utterances] for side in (ref, hyp))
        aligned = self._align(refs, hyps)
        return Counts(
            sentences=len(utterances),
            words=aligned.hits + aligned.substitutions + aligned.deletions,
            correct=aligned.hits,
            substitutions=aligned.substitutions,
            deletions=aligned.deletions,
            insertions=aligned.insertions,
            sentence_errors=sum(ref[u] != hyp[u] for u in utterances),
        )

    def _align(
        self, refs: list[str], hyps: list[str]
    ) -> "CharacterOutput | WordOutput":
        try:
            import jiwer
        except ImportError:
            sctk = "sctk (Debian: apt-get install sctk) or " * (not self.characters)
            raise InputError(
                f"no scorer: install {sctk}jiwer (pip install jiwer)"
            ) from None
        if self.characters:
            keep = jiwer.Compose([jiwer.ReduceToListOfListOfChars()])
            return jiwer.process_characters(refs, hyps, keep, keep)
        keep = jiwer.Compose([jiwer.ReduceToListOfListOfWords()])
        return jiwer.process_words(refs, hyps, keep, keep)


def is_installed() -> bool:
    """Whether jiwer is installed."""
    return find_spec("jiwer") is not None


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
        found = _probe_sclite((given,)) or _probe_sclite((given, "sclite"))
        if found is None:
            raise InputError(
                f"{given}: not NIST's sclite or sctk (install the package sctk)"
            )
        return found
    # The program of the Python package sctk is another one, which this rejects.
    for command in (("sclite",), ("sctk", "sclite")):
        if shutil.which(command[0]) and (found := _probe_sclite(command)):
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


def _probe_sclite(command: tuple[str, ...]) -> Sclite | None:
    try:
        version = sclite_version(command)
    except InputError:
        return None
    return Sclite(command, version) if version else None


_FIELD = re.compile(r"(File|Channel|Scores): +(.*\S) *")


def parse_alignments(report: str, sides: Iterable[str]) -> dict[str, Counts]:
    """Add up the counts of the segments on each conversation side.

    Args:
        report: The alignments that sclite reports of an STM and a CTM.
        sides: The sides' names, as `en_4156-A`; sclite writes them in lower case.

    Returns:
        The counts of each side that has a segment in the report.

    Raises:
        InputError: The report is of another form.
    """
    names = {side.lower(): side for side in sides}
    found: dict[str, list[Counts]] = {}
    place: dict[str, str] = {}
    for line in report.splitlines():
        match = _FIELD.fullmatch(line)
        if not match:
            continue
        place[match.group(1)] = match.group(2)
        if "Scores" in place:
            counts = _counts(place.pop("Scores"))
            side = f"{place.get('File')}-{place.get('Channel')}"
            if side not in names:
                raise InputError(f"sclite's alignments have an unknown side {side}")
            found.setdefault(names[side], []).append(counts)
    return {side: Counts.total(found[side]) for side in sorted(found)}


def _counts(scores: str) -> Counts:
    match = re.fullmatch(r"\(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", scores)
    if not match:
        raise InputError(f"sclite's alignments have scores in another form: {scores}")
    correct, substituted, deleted, inserted = map(int, match.groups())
    return Counts(
        sentences=1,
        words=correct + substituted + deleted,
        correct=correct,
        substitutions=substituted,
        deletions=deleted,
        insertions=inserted,
        sentence_errors=int(substituted + deleted + inserted > 0),
    )


CTM = "hyp.ctm"
_REPORTS = ("sys", "raw", "lur", "pra", "prf", "dtl")
REPORTS = tuple(f"{CTM}.filt.{ending}" for ending in _REPORTS)
"""The names of hubscr's reports: percentages, counts and labels by speaker, two forms
of the alignments, and the confused words."""


@dataclass(frozen=True)
class Hubscr:
    """An installed hubscr: the directory of SCTK's programs, and sclite's version."""

    directory: Path
    version: str

    @property
    def label(self) -> str:
        """The name that results carry."""
        return f"hubscr (sclite {self.version})"

    def count(
        self,
        sides: Mapping[str, ConversationSide],
        stm: Path,
        glm: Path,
        ctm: str,
        keep: Path,
    ) -> dict[str, Counts]:
        """Score the words of a CTM.

        `ctm` is the text of the CTM. It and hubscr's reports are copied into the
        existing directory `keep`.

        Returns:
            The counts of each side that has a segment to score.

        Raises:
            InputError: hubscr failed, or its reports do not add up to the reference.
        """
        # hubscr sorts its input, leaves files behind, and reads no name with a blank.
        # So it works on copies.
        with tempfile.TemporaryDirectory(prefix="hubscr.") as name:
            work = Path(name)
            write_text(work / "ref.stm", with_capital_channels(read_text(stm)))
            shutil.copyfile(glm, work / "map.glm")
            write_text(work / CTM, with_capital_channels(ctm))
            self._run(work)
            raw, pra = (_read(work / f"{CTM}.filt.{end}") for end in ("raw", "pra"))
            counts = parse_alignments(pra, sides)
            self._check(counts, sides, raw, stm)
            for report in (CTM, *REPORTS):
                shutil.copyfile(work / report, keep / report)
        return counts

    def _run(self, work: Path) -> None:
        # -V turns the validation off, which rejects words that sclite can score
        # (`at&t`), and does not say where. The readers of STM, GLM and CTM have checked
        # the rest.
        arguments = f"-V -l english -h hub5 -g map.glm -r ref.stm {CTM}"
        program = str(self.directory / "hubscr.pl")
        done = run([program, "-p", str(self.directory), *arguments.split()], cwd=work)
        if done.returncode != 0:
            raise InputError(
                f"{program} failed with exit code {done.returncode}: {complaint(done)} "
                "(damaged rules in the GLM may be the reason)"
            )

    def _check(
        self,
        counts: dict[str, Counts],
        sides: Mapping[str, ConversationSide],
        raw: str,
        stm: Path,
    ) -> None:
        """Check that all segments were scored, and that hubscr's sum is the same."""
        for name, side in sides.items():
            judged = sum(each.judged for each in side.references)
            found = counts[name].sentences if name in counts else 0
            if found != judged:
                raise InputError(
                    f"{stm}: {self.label} scored {found} segments of {name}, the file "
                    f"has {judged}: look for markup that sclite does not read, and for "
                    "damaged rules in the GLM"
                )
        summary, total = parse_raw_summary(raw), Counts.total(counts.values())
        if summary != total:
            raise InputError(
                f"{self.label} counted {summary.errors} errors in {summary.words} "
                f"words, its alignments have {total.errors} in {total.words}: another "
                "version of SCTK is needed"
            )


def find_hubscr(given: str | None = None) -> Hubscr | None:
    """Find SCTK's programs: where the user says, else by the names on PATH.

    Args:
        given: The directory of SCTK or of its programs, or one of its programs, or
            Debian's front end `sctk`; None to search on PATH.

    Returns:
        The installation found, or None if there is none on PATH.

    Raises:
        InputError: `given` is no installation with hubscr.pl and sclite.
    """
    names = ("sctk", "hubscr.pl", "sclite") if given is None else (given,)
    for directory in _directories(names):
        found = _probe_hubscr(directory)
        if found:
            return found
    if given is not None:
        raise InputError(
            f"{given}: no hubscr.pl and sclite of NIST's SCTK there (Debian: apt-get "
            "install sctk perl; else give the directory of a built SCTK)"
        )
    return None


def _directories(names: tuple[str, ...]) -> Iterator[Path]:
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from (path, path / "bin")
        elif (program := shutil.which(name)) is not None:
            yield Path(program).resolve().parent
            # Only Debian's front end has this command, so no other program is asked.
            if Path(program).name == "sctk":
                yield from map(Path, run([program, "path"]).stdout.splitlines()[:1])


def _probe_hubscr(directory: Path) -> Hubscr | None:
    directory = directory.resolve()
    if not all((directory / name).is_file() for name in ("hubscr.pl", "sclite")):
        return None
    if re.search(r"[\s:]", str(directory)):
        raise InputError(
            f"{directory}: hubscr takes no directory with a blank or colon in its name"
        )
    version = sclite_version([str(directory / "sclite")])
    return Hubscr(directory, version) if version else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise InputError(f"hubscr wrote no {path.name}: does perl run?") from None


def count_normalized(sides: Mapping[str, ConversationSide]) -> dict[str, Counts]:
    """Score the words of conversation sides without SCTK.

    Returns:
        The counts of each side that has a segment to score.

    Raises:
        InputError: jiwer is not installed.
    """
    counts = {}
    for name, side in sides.items():
        segments = list(plain_segments(side))
        ref = {str(n): words for n, (_, words, _) in enumerate(segments)}
        hyp = {str(n): words for n, (_, _, words) in enumerate(segments)}
        if segments:
            counts[name] = Jiwer().count(ref, hyp)
    return counts


def plain_segments(
    side: ConversationSide,
) -> Iterator[tuple[float, list[str], list[str]]]:
    """Yield each scored segment: start in s, words of reference and of hypothesis."""
    judged = (each for each in side.references if each.judged)
    for reference, (text, words) in zip(judged, side.segments(), strict=True):
        yield reference.span.start, plain_reference(text), plain_hypothesis(words)
