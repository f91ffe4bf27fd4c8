"""Prepare the IAM handwriting database: data directories of its lines."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write the data directories train, dev and test of IAM's lines, "
        "from the archives ascii.tgz (or xml.tgz) and lines.tgz.",
    )
    parser.add_argument(
        "--iam",
        type=Path,
        required=True,
        help="directory that has ascii/ (or xml/) and lines/",
    )
    parser.add_argument("--out", type=Path, required=True, help="as data")
    for name in ("train", "dev", "test"):
        parser.add_argument(
            f"--{name}_ids",
            type=Path,
            nargs="+",
            help=f"lists of the ids of lines or forms for {name}; default: the "
            "archive's own trainset.txt, validationset1.txt, validationset2.txt and "
            "testset.txt",
        )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the directories, and print a summary."""
    args = get_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy.
    from espnet_distopt.corpora.lines.iam import read_iam
    from espnet_distopt.corpora.lines.iam_split import own_lists, read_split
    from espnet_distopt.corpora.lines.sets import summarize, write_sets

    given = {"train": args.train_ids, "dev": args.dev_ids, "test": args.test_ids}
    if any(given.values()) and not all(given.values()):
        raise InputError("expected --train_ids, --dev_ids and --test_ids, or none")
    lists = given if all(given.values()) else own_lists(args.iam)
    sets = read_iam(args.iam, read_split(lists))
    write_sets({args.out / name: lines for name, lines in sets.items()})
    print(summarize(sets))
    trained = set(sets["train"].utt2spk.values())
    for name in ("dev", "test"):
        if both := trained & {*sets[name].utt2spk.values()}:
            print(f"{name}: {len(both)} of its writers are also in train")


if __name__ == "__main__":
    main()
