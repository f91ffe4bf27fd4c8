"""Features whose state is easy to see, and how to train on them for a second."""

from pathlib import Path

import numpy as np

from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.corpora.kaldi.arks import FloatArkWriter
from espnet_distopt.recipes.hmm.alignments import Pdfs, write_alignments
from espnet_distopt.recipes.hmm.language import PhoneStates, write_states

STATES = PhoneStates(("SIL", "a"))
DIMENSIONS = 8


def write_toy_frames(root: Path, train: int = 12, valid: int = 4) -> None:
    rng = np.random.default_rng(0)
    write_states(root / "states.txt", STATES)
    for name, count in (("train", train), ("valid", valid)):
        folder = root / name
        folder.mkdir()
        write_states(folder / "states.txt", STATES)
        alignments: dict[str, Pdfs] = {}
        with FloatArkWriter(folder / "feats.ark") as ark:
            for number in range(count):
                pdfs = np.repeat(np.tile(np.arange(6), 3), rng.integers(1, 4, 18))
                key = f"s-{name}-{number:02d}"
                alignments[key] = pdfs.astype(np.int32)
                noise = 0.1 * rng.standard_normal((len(pdfs), DIMENSIONS))
                ark[key] = (np.eye(6, DIMENSIONS)[pdfs] + noise).astype(np.float32)
        write_table(folder / "feats.scp", ark.locations)
        write_alignments(folder, folder, alignments, len(STATES))


def arguments(root: Path, output: Path, *more: str) -> list[str]:
    """Return the options of a training of two short epochs."""
    options = ["--token_list", str(root / "states.txt"), "--ngpu", "0"]
    options += ["--use_preprocessor", "false", "--normalize", "none"]
    options += ["--input_size", str(DIMENSIONS)]
    for name in ("train", "valid"):
        data = f"--{name}_data_path_and_name_and_type"
        options += [data, f"{root}/{name}/ali.scp,states,kaldi_ark"]
        options += [data, f"{root}/{name}/feats.scp,speech,kaldi_ark"]
        options += [f"--{name}_shape_file", f"{root}/{name}/utt2num_frames"]
    for value in [
        "num_layers=1",
        "hidden_size=8",
        "output_size=8",
        "use_projection=false",
    ]:
        options += ["--encoder_conf", value]
    options += ["--encoder", "rnn", "--optim", "adam", "--optim_conf", "lr=0.05"]
    options += ["--iterator_type", "chunk", "--chunk_length", "7"]
    options += ["--chunk_shift_ratio", "1.0", "--num_cache_chunks", "16"]
    options += ["--batch_size", "8", "--num_workers", "0", "--num_att_plot", "0"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    options += ["--max_epoch", "2", "--best_model_criterion", "valid,loss,min"]
    return [*options, "--resume", "true", "--output_dir", str(output), *more]
