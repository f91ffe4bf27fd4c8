"""Score word times against a Hub5 reference: hubscr's counts, by half and by side."""

import argparse
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path

from espnet_distopt.bin.options import add_halves
from espnet_distopt.corpora.hub5.ctm import format_ctm, read_ctm, words_by_side
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.text import read_bytes, read_text
from espnet_distopt.files.writing import explain_failed_write, remove_earlier
from espnet_distopt.scoring.hubscr import CTM, REPORTS, Hubscr, find_hubscr
from espnet_distopt.scoring.jiwer_counts import is_installed
from espnet_distopt.scoring.normalized import count_normalized, label
from espnet_distopt.scoring.result import AS_IS, FILES, FILTERED, Result, add_up
from espnet_distopt.scoring.sides import (
    ConversationSide,
    add_words,
    all_words,
    check_known,
    read_sides,
)
from espnet_distopt.scoring.subsets import parse_halves
from espnet_distopt.scoring.worst import FILE, worst_segments, write_worst


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Count word errors as the Hub5 evaluations do. Writes result.txt, "
        "result.json and hubscr's reports into --out. Hesitations, cut-off words and "
        "tags are dropped from the CTM first, as Kaldi's and ESPnet's recipes do; with "
        "--ctm_as_is they count, as in NIST's evaluations.",
    )
    parser.add_argument("--stm", type=Path, required=True, help="reference")
    parser.add_argument("--glm", type=Path, required=True, help="mapping rules")
    parser.add_argument(
        "--ctm", type=Path, required=True, help="recognized words with times"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument(
        "--ctm_as_is",
        action="store_true",
        help="give all words of the CTM to hubscr; the result is then hubscr's own",
    )
    add_halves(parser, "sides (as sw_4390-A) whose name")
    parser.add_argument(
        "--scorer",
        choices=("auto", "hubscr", "jiwer"),
        default="auto",
        help="auto: hubscr if installed, else jiwer on normalised text (default)",
    )
    parser.add_argument(
        "--sctk", metavar="PATH", help="SCTK: its directory, or a program of it"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Score the words, and print the counts."""
    parser = get_parser()
    args = parser.parse_args(cmd)
    if args.ctm_as_is and args.scorer == "jiwer":
        parser.error("--ctm_as_is is for hubscr: jiwer drops what is not normalised")
    inputs = (args.stm, args.glm, args.ctm)
    remove_earlier(args.out, *FILES, FILE, CTM, *REPORTS, inputs=inputs)
    halves = parse_halves(args.half)
    sides = read_sides(args.stm)
    read_bytes(args.glm)
    score = _score_as_is if args.ctm_as_is else _score
    with explain_failed_write(args.out):
        result = score(sides, halves, args)
        if not args.ctm_as_is:  # As it is, only hubscr knows which words are scored.
            write_worst(args.out, worst_segments(sides))
        result.write(args.out)
    print(result.summary(), end="")


def _score(
    sides: dict[str, ConversationSide],
    halves: Mapping[str, str],
    args: argparse.Namespace,
) -> Result:
    add_words(sides, read_ctm(args.ctm), args.stm, args.ctm)
    words = all_words(sides.values())
    _tell_if_empty(words, args.ctm)
    hubscr = _find(args.scorer, args.sctk)
    args.out.mkdir(parents=True, exist_ok=True)
    normalized = None
    if hubscr is None or is_installed():
        normalized = add_up(label(), count_normalized(sides), halves, ctm=FILTERED)
    if hubscr is None:
        assert normalized is not None
        return normalized
    counts = hubscr.count(sides, args.stm, args.glm, format_ctm(words), args.out)
    return add_up(hubscr.label, counts, halves, normalized, FILTERED)


def _score_as_is(
    sides: dict[str, ConversationSide],
    halves: Mapping[str, str],
    args: argparse.Namespace,
) -> Result:
    recognized = words_by_side(args.ctm)
    check_known(sides, recognized, args.stm, args.ctm)
    _tell_if_empty(recognized, args.ctm)
    hubscr = _find("hubscr", args.sctk)
    assert hubscr is not None
    args.out.mkdir(parents=True, exist_ok=True)
    ctm = read_text(args.ctm, may_be_empty=True)
    counts = hubscr.count(sides, args.stm, args.glm, ctm, args.out)
    return add_up(hubscr.label, counts, halves, ctm=AS_IS)


def _tell_if_empty(words: Sized, ctm: Path) -> None:
    if not words:
        print(f"{ctm}: no word to score: all words of the reference count as deleted")


def _find(choice: str, path: str | None) -> Hubscr | None:
    if choice == "jiwer":
        return None
    found = find_hubscr(path)
    if found is None and choice == "hubscr":
        raise InputError("hubscr is not installed (Debian: apt-get install sctk)")
    if found is None:
        print("no hubscr (SCTK) found: scoring with jiwer; not a hub5 figure")
    return found


if __name__ == "__main__":
    main()
