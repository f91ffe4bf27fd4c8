"""Compute log-mel features with deltas for a hybrid system."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.progress import ProgressLine
from espnet_distopt.errors import one_line_errors


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write the features of the utterances of a directory of "
        "format_data: 40 log-mel energies with first and second derivatives for each "
        "10 ms, normalized by speaker, in Kaldi's compressed form.",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="has wav.scp and utt2spk"
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Compute the features, and print the number of frames."""
    args = get_parser().parse_args(cmd)
    # This comes late, because torch is slow to import.
    from espnet_distopt.corpora.audio.log_mel import write_features

    started = time.monotonic()
    progress = ProgressLine("features of {done} of {total} utterances", every=5000)
    frames = write_features(args.data, args.out, progress)
    print(f"{args.out}: {frames} frames, in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    main()
