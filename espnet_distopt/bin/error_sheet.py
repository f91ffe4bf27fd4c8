"""Show the worst lines of a decoding on one page: the images, and what was read."""

import argparse
import base64
import io
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    write_text,
)
from espnet_distopt.scoring.worst import WorstLine, worst_lines

_STYLE = """\
body { font: 16px/1.5 sans-serif; margin: auto; max-width: 70rem; padding: 1rem; }
img { max-height: 4rem; max-width: 100%; }
p { margin: 0; white-space: pre-wrap; }
b { background: #ffd9d0; }
"""


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write a page (HTML) of the lines with the most wrong characters: "
        "each image, and below it reference and hypothesis with what differs marked.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="has feats.scp or images.scp"
    )
    parser.add_argument("--ref", type=Path, required=True, help="reference `text`")
    parser.add_argument("--hyp", type=Path, required=True, help="decoded `text`")
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    parser.add_argument("--most", type=int, default=40, help="lines to show")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the page, and print how many lines it shows."""
    args = get_parser().parse_args(cmd)
    remove_earlier(args.out, inputs=(args.ref, args.hyp))
    # It comes late, so that --help doesn't wait for numpy and scipy.
    from espnet_distopt.scoring.characters import read_lines

    ref, hyp = read_lines(args.ref, args.hyp)
    chosen = worst_lines(ref, hyp, characters=True, most=args.most)
    page = "\n".join(_page(chosen, _images(args.data))) + "\n"
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.out, page)
    print(f"{args.out}: the worst {len(chosen)} of {len(ref)} lines")


def _page(
    lines: Sequence[WorstLine], image_of: Callable[[str], bytes]
) -> Iterator[str]:
    yield f'<!doctype html>\n<meta charset="utf-8">\n<style>\n{_STYLE}</style>'
    yield "<title>Worst lines</title>\n<h1>Worst lines</h1>"
    for line in lines:
        png = base64.b64encode(image_of(line.id)).decode()
        ref, hyp = _marked(line.ref, line.hyp)
        yield f"<h2>{escape(line.id)}: {line.errors} of {line.length}</h2>"
        yield f'<img alt="" src="data:image/png;base64,{png}">'
        yield f'<p dir="auto">{ref}</p>\n<p dir="auto">{hyp}</p>'


def _marked(ref: str, hyp: str) -> tuple[str, str]:
    """Return both texts as HTML, with the characters that differ in bold."""
    texts: tuple[list[str], list[str]] = [], []
    changes = SequenceMatcher(None, ref, hyp, autojunk=False).get_opcodes()
    for kind, a, b, c, d in changes:
        for text, part in zip(texts, (ref[a:b], hyp[c:d]), strict=True):
            shown = escape(part)
            text.append(shown if kind == "equal" or not shown else f"<b>{shown}</b>")
    return "".join(texts[0]), "".join(texts[1])


def _images(data: Path) -> Callable[[str], bytes]:
    """Return what reads the image of a line, by its id, as PNG.

    Raises:
        InputError: The directory has neither `images.scp` nor `feats.scp`. What is
            returned raises it for a line that is not there, or cannot be read.
    """
    import numpy as np
    from PIL import Image

    from espnet_distopt.corpora.kaldi.matrix_arks import read_matrix
    from espnet_distopt.corpora.kaldi.tables import read_table
    from espnet_distopt.corpora.lines.images import read_image

    names = (data / "images.scp", data / "feats.scp")
    scp = next((path for path in names if path.is_file()), None)
    if scp is None:
        raise InputError(f"{data}: neither images.scp nor feats.scp")
    places = read_table(scp, str)

    def image_of(line: str) -> bytes:
        if line not in places:
            raise InputError(f"{scp}: line {line} is not in it")
        if scp.name == "images.scp":
            gray = read_image(Path(places[line]))
        else:
            ink = read_matrix(places[line])
            gray = (255 - 255 * ink.T.clip(0, 1)).astype(np.uint8)
        png = io.BytesIO()
        Image.fromarray(gray).save(png, format="png")
        return png.getvalue()

    return image_of


if __name__ == "__main__":
    main()
