"""Write a hybrid system's scores as Kaldi arks, for decoding with Kaldi's own graph."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from espnet_distopt.bin.options import model_files
from espnet_distopt.corpora.kaldi.matrix_arks import FloatArkWriter
from espnet_distopt.corpora.kaldi.tables import read_table, write_table
from espnet_distopt.errors import one_line_errors
from espnet_distopt.espnet.training.same_training import refuse_other_labels
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    whole_file,
)


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Write OUT/scores.ark and OUT/scores.scp: the log posteriors of "
        "each frame's pdfs minus their log priors, which Kaldi's latgen-faster-mapped "
        "takes with the final.mdl and the HCLG.fst of the alignments.",
    )
    parser.add_argument("--exp", type=Path, required=True, help="has config.yaml")
    parser.add_argument(
        "--model", default="valid.loss.ave.pth", help="model file in --exp"
    )
    parser.add_argument(
        "--ali",
        type=Path,
        required=True,
        help="alignments of the training set, as exp/hybrid_gmm/train: their counts "
        "give the priors",
    )
    parser.add_argument("--data", type=Path, required=True, help="has hybrid/feats.scp")
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    return parser


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Write the scores, and print how many utterances there were."""
    args = get_parser().parse_args(cmd)
    remove_earlier(args.out, "scores.scp", "scores.ark")
    feats = read_table(args.data / "hybrid/feats.scp", str)
    config, parameters = model_files(args.exp, args.model)
    refuse_other_labels(args.exp, args.ali)

    # This comes late, because ESPnet is slow to import.
    from espnet_distopt.espnet.hybrid.posteriors import PosteriorModel
    from espnet_distopt.hmm.alignments import require_states

    model = PosteriorModel(config, parameters)
    require_states(args.ali, model.states, str(args.exp))
    path = args.out / "scores.ark"
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as new, FloatArkWriter(new, named=path) as ark:
            for name, scores in model.scaled_likelihoods(feats, args.ali / "counts"):
                ark[name] = scores
        with whole_file(args.out / "scores.scp") as new:
            write_table(new, ark.locations)
    print(f"{path}: {len(ark.locations)} utterances, {model.pdfs} pdfs")


if __name__ == "__main__":
    main()
