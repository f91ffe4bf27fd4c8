"""Score decoded text against its reference: word errors by sclite, else by jiwer."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.options import add_halves, read_speakers
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    write_text,
)
from espnet_distopt.scoring.jiwer_counts import Jiwer
from espnet_distopt.scoring.result import FILES, Scorer, score
from espnet_distopt.scoring.sclite import find_sclite
from espnet_distopt.scoring.subsets import parse_halves
from espnet_distopt.scoring.trn import (
    check_same_utterances,
    format_trn,
    read_text,
)
from espnet_distopt.scoring.worst import FILE, worst_lines, write_worst

_WRITTEN = ("ref.trn", "hyp.trn", *FILES, FILE)


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Count word errors. Writes ref.trn, hyp.trn, result.txt, "
        "result.json and, for reports, worst.json into --out. An utterance decoded to "
        "nothing counts as deletions; an utterance missing from the hypotheses is an "
        "error.",
    )
    parser.add_argument("--ref", type=Path, required=True, help="reference `text`")
    parser.add_argument("--hyp", type=Path, required=True, help="decoded `text`")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--utt2spk", type=Path, help="speakers, for the trn ids")
    add_halves(parser, "utterances whose id")
    parser.add_argument(
        "--scorer",
        choices=("auto", "sclite", "jiwer"),
        default="auto",
        help="auto: sclite if installed, else jiwer (default)",
    )
    parser.add_argument("--sctk", metavar="PATH", help="sclite or sctk to use")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Score the text, and print the counts."""
    args = get_parser().parse_args(cmd)
    remove_earlier(args.out, *_WRITTEN, inputs=(args.ref, args.hyp, args.utt2spk))
    halves = parse_halves(args.half)
    ref, hyp = read_text(args.ref), read_text(args.hyp)
    check_same_utterances(ref, hyp, args.ref, args.hyp)
    speakers = read_speakers(args.utt2spk, ref)
    result = score(ref, hyp, halves, _scorer(args.scorer, args.sctk))
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        write_text(args.out / "ref.trn", format_trn(ref, speakers))
        write_text(args.out / "hyp.trn", format_trn(hyp, speakers))
        write_worst(args.out, worst_lines(ref, hyp))
        result.write(args.out)
    print(result.summary(), end="")


def _scorer(choice: str, path: str | None) -> Scorer:
    if choice == "jiwer":
        return Jiwer()
    sclite = find_sclite(path)
    if sclite is not None:
        return sclite
    if choice == "sclite":
        raise InputError("sclite is not installed (Debian: apt-get install sctk)")
    return Jiwer()


if __name__ == "__main__":
    main()
