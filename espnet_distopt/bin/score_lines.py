"""Score decoded text lines against their reference: character and word error rates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.options import add_halves, read_speakers
from espnet_distopt.errors import one_line_errors
from espnet_distopt.files.writing import explain_failed_write, remove_earlier
from espnet_distopt.scoring.characters import read_lines, score_lines
from espnet_distopt.scoring.result import CER, FILES
from espnet_distopt.scoring.subsets import parse_halves
from espnet_distopt.scoring.worst import FILE, worst_lines, write_worst


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Count character and word errors of text lines with jiwer. Writes "
        "result.txt and result.json into OUT/score_cer and OUT/score_wer, and, for "
        "reports, the worst lines into OUT/score_cer/worst.json. A line "
        "decoded to nothing counts as deletions; a line missing from the hypotheses, "
        "or without a reference text, is an error.",
    )
    parser.add_argument("--ref", type=Path, required=True, help="reference `text`")
    parser.add_argument("--hyp", type=Path, required=True, help="decoded `text`")
    parser.add_argument("--out", type=Path, required=True, help="directory to write to")
    parser.add_argument(
        "--utt2spk",
        type=Path,
        help="writers or fonts, over which the 95 %% intervals are taken (default: "
        "over lines)",
    )
    add_halves(parser, "lines whose id")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Score the lines, and print the counts."""
    args = get_parser().parse_args(cmd)
    outs = [args.out / "score_cer", args.out / "score_wer"]
    written = [f"{out.name}/{name}" for out in outs for name in (*FILES, FILE)]
    remove_earlier(args.out, *written, inputs=(args.ref, args.hyp, args.utt2spk))
    halves = parse_halves(args.half)
    ref, hyp = read_lines(args.ref, args.hyp)
    writers = read_speakers(args.utt2spk, ref)
    results = score_lines(ref, hyp, writers, halves)
    with explain_failed_write(args.out):
        for out, result in zip(outs, results, strict=True):
            out.mkdir(parents=True, exist_ok=True)
            if result.measure == CER:
                write_worst(out, worst_lines(ref, hyp, characters=True))
            result.write(out)
    for result in results:
        print(result.summary(), end="")


if __name__ == "__main__":
    main()
