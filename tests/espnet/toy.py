"""A training set of tones small enough to train on in a second, and how to run it."""

import os
from pathlib import Path

import kaldiio
import numpy as np

WORDS = ["low", "mid", "high"]


def write_toy_data(root: Path, train: int = 24, valid: int = 8) -> None:
    rng = np.random.default_rng(0)
    (root / "tokens.txt").write_text(
        "\n".join(["<blank>", "<unk>", *WORDS, "<sos/eos>"])
    )
    for name, count in (("train", train), ("valid", valid)):
        folder = root / name
        folder.mkdir()
        texts, lengths = [], []
        spec = f"ark,scp:{folder}/wav.ark,{folder}/wav.scp"
        with kaldiio.WriteHelper(spec, write_function="soundfile") as ark:
            for number in range(count):
                tones = rng.integers(0, 3, size=int(rng.integers(2, 4)))
                t = np.arange(2400) / 8000
                wav = [np.sin(2 * np.pi * (400 + 500 * tone) * t) for tone in tones]
                samples = np.concatenate(wav) + 0.01 * rng.standard_normal(
                    2400 * len(wav)
                )
                key = f"spk-{name}-{number:03d}"
                ark[key] = (8000, (samples * 8000).astype(np.int16))
                texts.append(f"{key} " + " ".join(WORDS[tone] for tone in tones))
                lengths.append(f"{key} {len(samples)}")
        (folder / "text").write_text("\n".join(texts) + "\n")
        (folder / "shape").write_text("\n".join(lengths) + "\n")


def arguments(root: Path, output: Path, *more: str) -> list[str]:
    """Return the options of a training of two short epochs."""
    options = ["--use_preprocessor", "true", "--token_type", "word"]
    options += ["--token_list", str(root / "tokens.txt"), "--ngpu", "0"]
    for name in ("train", "valid"):
        data = f"--{name}_data_path_and_name_and_type"
        options += [data, f"{root}/{name}/wav.scp,speech,kaldi_ark"]
        options += [data, f"{root}/{name}/text,text,text"]
        options += [f"--{name}_shape_file", str(root / name / "shape")]
    model = {
        "frontend_conf": "fs=8000 n_fft=256 hop_length=160 n_mels=8",
        "encoder_conf": "num_layers=1 hidden_size=6 output_size=5 use_projection=false",
        "model_conf": "ctc_weight=1.0",
        "optim_conf": "lr=0.01",
    }
    for key, values in model.items():
        for value in values.split():
            options += [f"--{key}", value]
    options += ["--encoder", "rnn", "--optim", "adam", "--batch_type", "sorted"]
    options += ["--batch_size", "4", "--num_workers", "0", "--num_att_plot", "0"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    options += ["--max_epoch", "2", "--best_model_criterion", "valid,loss,min"]
    return [*options, "--resume", "true", "--output_dir", str(output), *more]


def be_learner(rank: int, size: int, rendezvous: Path) -> list[str]:
    """Set this process up as learner `rank`; returns the options that say so."""
    os.environ.pop("RANK", None)
    return [
        "--dist_world_size",
        str(size),
        "--dist_rank",
        str(rank),
        "--dist_init_method",
        f"file://{rendezvous}",
        "--multiprocessing_distributed",
        "false",
    ]
