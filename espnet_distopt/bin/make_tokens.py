"""Make a token list from training text: words, characters, or subwords."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.corpora.kaldi.tokens import TYPES, make_tokens
from espnet_distopt.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write a token list in ESPnet's form (tokens.txt; for bpe also "
        "bpe.model).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--type", choices=TYPES, required=True, help="kind of token")
    parser.add_argument("--text", type=Path, required=True, help="Kaldi `text` file")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument(
        "--nbpe", type=int, default=100, help="length of the list (bpe only)"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Make the list, and print its size."""
    args = get_parser().parse_args(cmd)
    tokens = make_tokens(args.text, args.out, args.type, args.nbpe)
    print(f"{args.out / 'tokens.txt'}: {len(tokens)} tokens of type {args.type}")


if __name__ == "__main__":
    main(None)
