"""Import the frame labels of a hybrid system from the alignments of a Kaldi system."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from espnet_distopt.bin.options import add_max_lost, named_sets
from espnet_distopt.corpora.kaldi.tables import counted, read_table
from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.files.writing import write_text
from espnet_distopt.hmm.alignments import Pdfs, write_alignments
from espnet_distopt.hmm.kaldi_model import fit, read_kaldi_alignments


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Read a Kaldi directory with final.mdl and ali.*.gz, and write for "
        "each --data OUT/NAME: the pdf of each frame, the numbers of frames, and the "
        "counts of the pdfs, as gmm_train writes them. Utterances that Kaldi has not "
        "aligned are left out, and counted.",
    )
    parser.add_argument("--ali", type=Path, required=True, help="as exp/tri4_ali")
    parser.add_argument(
        "--data",
        action="append",
        required=True,
        metavar="NAME=DUMP",
        help="a set with DUMP/hybrid/utt2num_frames from make_features (repeatable)",
    )
    why = "they are not as long as the features"
    add_max_lost(parser, "a set's alignments", why)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Import the alignments, and print how many there were."""
    args = get_parser().parse_args(cmd)
    frames = {
        name: read_table(dump / "hybrid/utt2num_frames", counted("utterance", "frames"))
        for name, dump in named_sets(args.data)
    }
    losses = {name: Losses(f"alignments of {name}", args.max_lost) for name in frames}
    pdfs, alignments = read_kaldi_alignments(args.ali)
    found = _fitted(alignments, frames, losses, args.ali)
    for each in losses.values():
        each.check(print)
    with whole_directory(args.out, marker="imported_from") as new:
        write_text(new / "imported_from", f"{args.ali}\n")
        for name, labels in found.items():
            if not labels:
                raise InputError(f"{args.ali}: no utterance of {name} is aligned")
            (new / name).mkdir()
            names = "".join(f"pdf_{number}\n" for number in range(pdfs))
            write_text(new / name / "states.txt", names)
            write_alignments(new / name, args.out / name, labels, pdfs)
    for name, labels in found.items():
        print(f"{name}: {len(labels)} of {len(frames[name])} utterances, {pdfs} pdfs")


def _fitted(
    alignments: Iterable[tuple[str, Pdfs]],
    frames: Mapping[str, Mapping[str, int]],
    losses: Mapping[str, Losses],
    ali: Path,
) -> dict[str, dict[str, Pdfs]]:
    """Return the alignments of each set that are as long as the features.

    Args:
        alignments: Each utterance with the pdf of each frame.
        frames: The number of frames of each utterance of each set.
        losses: Gets the alignments that are not, by set.
        ali: What the messages name.
    """
    found: dict[str, dict[str, Pdfs]] = {name: {} for name in frames}
    for utterance, alignment in alignments:
        for name, lengths in frames.items():
            if utterance not in lengths:
                continue
            fitted = fit(alignment, lengths[utterance])
            if fitted is None:
                losses[name].add(
                    f"{ali}: {utterance} has {len(alignment)} frames, but its features "
                    f"{lengths[utterance]}: they are not of one recording"
                )
            else:
                found[name][utterance] = fitted
                losses[name].kept += 1
    return found


if __name__ == "__main__":
    main()
