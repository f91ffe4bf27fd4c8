"""Estimate an n-gram over the words or characters of a text, as an ARPA file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.corpora.kaldi.tokens import characters, read_characters
from espnet_distopt.corpora.lines.sets import normal_text
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import explain_failed_write
from espnet_distopt.hmm.kneser_ney import estimate
from espnet_distopt.hmm.ngram import write_arpa


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Estimate an n-gram by interpolated Kneser-Ney smoothing, over all "
        "words of a text, or over its characters.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--text", type=Path, required=True, help="Kaldi `text` file")
    parser.add_argument(
        "--token_list",
        type=Path,
        help="characters that are the tokens of a model (stage 5 makes the list): the "
        "n-gram is over these instead of words",
    )
    parser.add_argument("--order", type=int, default=3, help="order of the n-gram")
    parser.add_argument("--out", type=Path, required=True, help="ARPA file to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the n-gram, and print its size."""
    args = get_parser().parse_args(cmd)
    # The texts of lines, of which a model learns its characters, are composed (NFC).
    parse = normal_text if args.token_list else str
    texts = read_table(args.text, parse).values()
    if args.token_list:
        words = {*read_characters(args.token_list)}
        sentences = [characters(text, words) for text in texts]
    else:
        sentences = [text.split() for text in texts]
        words = {word for sentence in sentences for word in sentence}
    if not any(sentences):
        raise InputError(f"{args.text}: no words")
    unit = "characters" if args.token_list else "words"
    model = estimate(sentences, words, args.order)
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_arpa(args.out, model)
    print(
        f"{args.out}: {len(words)} {unit}, {len(model.probabilities)} n-grams up to "
        f"order {args.order}"
    )


if __name__ == "__main__":
    main()
