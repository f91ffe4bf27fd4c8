"""Make a lexicon with HMM states, and an n-gram, for a hybrid system."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import one_line_errors
from espnet_distopt.hmm.language import make_language


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write a directory with lexicon.txt, states.txt (three states for "
        "each phone) and lm.arpa, an n-gram that is estimated from the text by "
        "interpolated Kneser-Ney smoothing.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--lexicon", type=Path, required=True, help="'word phone phone ...' a line"
    )
    parser.add_argument("--text", type=Path, required=True, help="Kaldi `text` file")
    parser.add_argument("--order", type=int, default=3, help="order of the n-gram")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Make the directory, and print its sizes."""
    args = get_parser().parse_args(cmd)
    made = make_language(args.lexicon, args.text, args.order, args.out)
    print(
        f"{args.out}: {len(made.lexicon)} words, {len(made.states.phones)} phones, "
        f"{len(made.ngram.probabilities)} n-grams up to order {args.order}"
    )


if __name__ == "__main__":
    main()
