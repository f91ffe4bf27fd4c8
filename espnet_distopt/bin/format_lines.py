"""Format a data directory of text lines: scale them, and pack them into arks."""

import argparse
import time
from collections.abc import Sequence

from espnet_distopt.bin.options import format_parser
from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = format_parser(
        "Read every line image of a data directory and write a dump directory: "
        "feats.ark (or one a process) and feats.scp, or images.scp; text, utt2spk, "
        "spk2utt, utt2num_frames, skipped.txt.",
        keep_all="keep lines of any width and without text (for test sets); an image "
        "that can't be read is then an error",
    )
    parser.add_argument(
        "--height", type=int, default=32, help="pixels that a line is scaled to"
    )
    parser.add_argument(
        "--least_rows",
        type=int,
        default=0,
        help="pad lower images with paper to so many rows before they are scaled",
    )
    parser.add_argument(
        "--feats",
        choices=("ark", "raw"),
        default="ark",
        help="ark: write the features; raw: check the images, which are then decoded "
        "when they are needed",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Format the directory, and print what was kept and what was unfit."""
    args = get_parser().parse_args(cmd)
    # This comes late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.corpora.lines.formatting import format_lines

    started = time.monotonic()
    formatted = format_lines(
        args.source,
        args.target,
        height=args.height,
        least_rows=args.least_rows,
        feats=args.feats,
        keep_all=args.keep_all,
        nj=args.nj,
        progress=ProgressLine("lines: {done} of {total}", every=5000),
    )
    print(
        f"{args.target}: {formatted.lines} lines, {formatted.columns} columns, in "
        f"{time.monotonic() - started:.1f} s"
    )
    verb = "kept, though" if args.keep_all else "skipped"
    for reason, count in sorted(formatted.unfit.items()):
        print(f"{args.target}: {verb} {count}: {reason} (see skipped.txt)")


if __name__ == "__main__":
    main(None)
