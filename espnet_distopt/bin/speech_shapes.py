"""Write the shapes of formatted speech and its text, which ESPnet batches by.

They are the shapes that ESPnet's collect_stats writes, without reading the audio.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import InputError, one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--train", type=Path, required=True, help="training set, as format_data wrote")
    add("--valid", type=Path, required=True, help="validation set")
    add("--token_type", choices=("word", "char", "bpe"), required=True)
    add("--bpemodel", help="model of the subwords (bpe)")
    add("--nj", type=int, default=1, help="processes (default: 1)")
    add("--out", type=Path, required=True, help="writes OUT/{train,valid}/*_shape")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the shapes, and print how many."""
    args = get_parser().parse_args(cmd)
    if args.nj < 1:
        raise InputError(f"--nj is {args.nj}, expected at least 1")
    if args.token_type == "bpe" and not Path(args.bpemodel or "").is_file():
        raise InputError(f"--bpemodel {args.bpemodel}: no such file: make the tokens")
    # This comes late, so that --help doesn't wait for ESPnet.
    from espnet_distopt.espnet.training.speech_shapes import write_shapes

    for name, data in (("train", args.train), ("valid", args.valid)):
        started = time.monotonic()
        number = write_shapes(
            data,
            args.out / name,
            token_type=args.token_type,
            bpemodel=args.bpemodel if args.token_type == "bpe" else None,
            nj=args.nj,
            progress=ProgressLine("shapes: {done} of {total}", every=100000),
        )
        print(f"{data}: {number} shapes in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main(None)
