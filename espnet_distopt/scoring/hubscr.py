"""Counts words by NIST's hubscr (SCTK), as the Hub5 evaluations do.

hubscr maps reference and hypothesis by the rules of a GLM. Then sclite aligns them, and
knows optional words (`(uh)`), alternatives (`{ a / b }`) and word fragments.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.hub5.channels import with_capital_channels
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text
from espnet_distopt.files.writing import write_text
from espnet_distopt.scoring.alignments import parse_alignments
from espnet_distopt.scoring.counts import Counts
from espnet_distopt.scoring.programs import complaint, run, sclite_version
from espnet_distopt.scoring.sclite import parse_raw_summary
from espnet_distopt.scoring.sides import ConversationSide

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

        Args:
            sides: The segments of `stm`.
            stm: The file of the reference.
            glm: The file of mapping rules.
            ctm: The text of the CTM.
            keep: An existing directory, into which the CTM and hubscr's reports are
                copied.

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
        found = _probe(directory)
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


def _probe(directory: Path) -> Hubscr | None:
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
