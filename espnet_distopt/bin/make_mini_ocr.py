"""Make a corpus of text lines: printed ones, and real handwritten digits."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.options import corpus_parser
from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import one_line_errors

_SIZES = {
    "train_printed": (4000, "printed training lines"),
    "train_digits": (8000, "handwritten training lines"),
    "dev_printed": (300, "printed development lines"),
    "dev_digits": (100, "handwritten development lines"),
    "test_printed": (400, "test lines in known fonts, and as many in unseen ones"),
    "test_digits": (400, "handwritten test lines"),
}


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = corpus_parser(
        __doc__,
        out="directory to make: images, and the data directories train, dev and test",
        sizes=_SIZES,
    )
    parser.add_argument(
        "--fonts",
        type=Path,
        nargs="+",
        default=[],
        help="more known fonts, files or directories; those that lack a character are "
        "left out",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Make the corpus, and print a summary."""
    args = get_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.corpora.lines.sets import summarize
    from espnet_distopt.corpora.mini_ocr.corpus import LineSizes, make_corpus
    from espnet_distopt.corpora.mini_ocr.fonts import added_fonts
    from espnet_distopt.corpora.mini_ocr.texts import ALPHABET

    started = time.monotonic()
    fonts, lacking = added_fonts(args.fonts, ALPHABET)
    for path in lacking:
        print(f"{path}: left out: a character of the texts is missing")
    progress = ProgressLine("lines: {done} of {total}", every=1000)
    sizes = LineSizes(**{name: getattr(args, name) for name in _SIZES})
    sets = make_corpus(args.out, sizes, args.seed, args.nj, fonts, progress)
    print(f"{args.out}: made in {time.monotonic() - started:.0f} s")
    print(summarize(sets))


if __name__ == "__main__":
    main()
