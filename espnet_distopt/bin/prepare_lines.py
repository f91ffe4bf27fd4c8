"""Prepare lines of your own: images with a table, or pages in PAGE XML."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import InputError, one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="data directory, as data/train"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--table",
        type=Path,
        help="file of lines: image, text and perhaps writer, separated by tabs",
    )
    source.add_argument(
        "--pages", type=Path, nargs="+", help="PAGE files, or directories of them"
    )
    parser.add_argument(
        "--images",
        type=Path,
        help="with --table: directory of the images, if not the table's own",
    )
    parser.add_argument(
        "--sets",
        action="store_true",
        help="with --pages DIRECTORY: write OUT/train, OUT/dev and OUT/test; the sets "
        "are the directories of these names in it, or one page in ten is of dev, one "
        "of test and the others are of train",
    )
    parser.add_argument(
        "--writer", default="", help="with --pages: of all lines, if not one a page"
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the directory, and print a summary."""
    args = get_parser().parse_args(cmd)
    if (args.images and args.pages) or (args.table and (args.writer or args.sets)):
        raise InputError("--images goes with --table, --writer and --sets with --pages")
    if args.sets and len(args.pages) > 1:
        raise InputError("--sets goes with one directory of pages")
    # These come late, so that --help doesn't wait for numpy.
    from espnet_distopt.corpora.lines.own import (
        divide_pages,
        read_table_of_lines,
        write_pages,
    )
    from espnet_distopt.corpora.lines.sets import summarize

    if args.table:
        lines = read_table_of_lines(args.table, args.images or args.table.parent)
        lines.write(args.out)
        made = {args.out: lines}
    else:
        divided = {args.out: args.pages}
        if args.sets:
            parts = divide_pages(args.pages[0])
            divided = {args.out / name: pages for name, pages in parts.items()}
        progress = ProgressLine("pages: {done} of {total}", every=50)
        made = write_pages(divided, args.writer, progress)
    print(summarize({out.name: lines for out, lines in made.items()}))
    for out, lines in made.items():
        if lines.skipped:
            print(f"{out / 'skipped.txt'} lists what was skipped, and why")


if __name__ == "__main__":
    main()
