"""Format a data directory: cut out its utterances and pack them into arks."""

import argparse
import time
from collections.abc import Sequence

from espnet_distopt.bin.options import format_parser
from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = format_parser(
        "Read every utterance of a Kaldi data directory and write a dump directory: "
        "wav.ark (or one a process), wav.scp, text, utt2spk, spk2utt, utt2num_samples, "
        "rate_and_speeds.",
        keep_all="keep utterances of any duration and without words (for test sets)",
    )
    parser.add_argument(
        "--min_seconds", type=float, default=0.1, help="drop shorter utterances"
    )
    parser.add_argument(
        "--max_seconds", type=float, default=20.0, help="drop longer utterances"
    )
    parser.add_argument(
        "--sample_rate", type=int, default=8000, help="rate the audio must have, Hz"
    )
    parser.add_argument(
        "--speed_factors",
        default="1.0",
        help='write each utterance at these speeds, as "0.9 1.0 1.1"; the limits hold '
        "for the copies",
    )
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Format the directory, and print what was kept and what was dropped."""
    args = get_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for numpy.
    from espnet_distopt.corpora.audio.cutting import Limits
    from espnet_distopt.corpora.audio.formatting import format_data
    from espnet_distopt.corpora.audio.speed import parse_factors

    started = time.monotonic()
    limits = Limits(min_seconds=args.min_seconds, max_seconds=args.max_seconds)
    formatted = format_data(
        args.source,
        args.target,
        limits=None if args.keep_all else limits,
        sample_rate=args.sample_rate,
        factors=parse_factors(args.speed_factors),
        nj=args.nj,
        progress=ProgressLine("utterances: {done} of {total}", every=5000),
    )
    print(
        f"{args.target}: {formatted.utterances} utterances, "
        f"{formatted.seconds / 3600:.2f} h, in {time.monotonic() - started:.1f} s"
    )
    for reason, count in sorted(formatted.dropped.items()):
        print(f"{args.target}: dropped {count} {reason}")
    if formatted.unreadable:
        print(
            f"{args.target}: left out {len(formatted.unreadable)} recording(s) that "
            f"cannot be read, the first: {formatted.unreadable[0]}"
        )


if __name__ == "__main__":
    main(None)
