"""Draw the worst lines of a decoding, and what was read wrong, into one picture."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
    write_text,
)


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Draw the lines with the most wrong characters: each image, and "
        "below it reference and hypothesis with the wrong characters marked. Writes "
        "the picture, and the same as text beside it (errors.png, errors.txt).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="has feats.scp or images.scp"
    )
    parser.add_argument("--ref", type=Path, required=True, help="reference `text`")
    parser.add_argument("--hyp", type=Path, required=True, help="decoded `text`")
    parser.add_argument("--out", type=Path, required=True, help="picture, a .png")
    parser.add_argument("--most", type=int, default=40, help="lines to draw, to 100")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Draw the picture, and print how many lines are wrong."""
    args = get_parser().parse_args(cmd)
    text = args.out.with_suffix(".txt")
    if args.out.suffix != ".png":
        raise InputError(f"--out {args.out}: expected the name of a .png")
    # The text may be an input: it is looked at before anything is removed.
    for path in (text, args.out):
        remove_earlier(path, inputs=(args.ref, args.hyp))
    # These come late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.scoring.characters import read_lines
    from espnet_distopt.scoring.error_sheet import worst_lines
    from espnet_distopt.scoring.error_sheet_images import DumpedImages
    from espnet_distopt.scoring.error_sheet_picture import draw_sheet

    ref, hyp = read_lines(args.ref, args.hyp)
    sheet = worst_lines(ref, hyp, args.most)
    picture = draw_sheet(sheet, DumpedImages(args.data))
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(text, sheet.to_text())
        with whole_file(args.out) as new:
            picture.save(new, format="png")
    print(f"{args.out}: {sheet.heading}")


if __name__ == "__main__":
    main()
