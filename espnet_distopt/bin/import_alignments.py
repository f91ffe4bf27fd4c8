"""Import the frame labels of a hybrid system from the alignments of a Kaldi system."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.options import named_sets
from espnet_distopt.corpora.kaldi.tables import counted, read_table
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
    pdfs, alignments = read_kaldi_alignments(args.ali)
    found: dict[str, dict[str, Pdfs]] = {name: {} for name in frames}
    for utterance, alignment in alignments:
        for name, lengths in frames.items():
            if utterance in lengths:
                fitted = fit(alignment, lengths[utterance])
                if fitted is None:
                    raise InputError(
                        f"{args.ali}: {utterance} has {len(alignment)} frames, but its "
                        f"features {lengths[utterance]}: they are not of one recording"
                    )
                found[name][utterance] = fitted
    with whole_directory(args.out, marker="imported_from") as new:
        write_text(new / "imported_from", f"{args.ali}\n")
        for name, each in found.items():
            if not each:
                raise InputError(f"{args.ali}: no utterance of {name} is aligned")
            (new / name).mkdir()
            names = "".join(f"pdf_{number}\n" for number in range(pdfs))
            write_text(new / name / "states.txt", names)
            write_alignments(new / name, args.out / name, each, pdfs)
    for name, each in found.items():
        print(f"{name}: {len(each)} of {len(frames[name])} utterances, {pdfs} pdfs")


if __name__ == "__main__":
    main()
