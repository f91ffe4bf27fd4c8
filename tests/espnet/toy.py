"""A training set of tones small enough to train on in a second, and how to run it."""

import os
from collections.abc import Mapping
from pathlib import Path

import kaldiio
import numpy as np

WORDS = ["low", "mid", "high"]


RNN = {
    "encoder": "rnn",
    "encoder_conf": "num_layers=1 hidden_size=6 output_size=5 use_projection=false",
    "model_conf": "ctc_weight=1.0",
}
"""The options of a small model with an RNN encoder and CTC."""

SPECAUG = {
    "specaug": "specaug",
    "specaug_conf": "apply_time_warp=true time_warp_window=2 apply_freq_mask=true "
    "freq_mask_width_range=[0,2] num_freq_mask=1 apply_time_mask=true "
    "time_mask_width_range=[0,4] num_time_mask=1",
}


def conformer(encoder: str = "conformer") -> dict[str, str]:
    """Return the options of a small conformer or its kin, with a transformer decoder.

    It draws random numbers (dropout, SpecAug) and has BatchNorm.
    """
    own = "output_size=8 attention_heads=2 linear_units=8 num_blocks=1 "
    own += "dropout_rate=0.1 positional_dropout_rate=0.1 attention_dropout_rate=0.1 "
    own += "input_layer=conv2d rel_pos_type=latest pos_enc_layer_type=rel_pos "
    more = {
        "conformer": "selfattention_layer_type=rel_selfattn activation_type=swish "
        "macaron_style=true use_cnn_module=true cnn_module_kernel=3",
        "e_branchformer": "attention_layer_type=rel_selfattn cgmlp_linear_units=16 "
        "cgmlp_conv_kernel=3 use_ffn=true macaron_ffn=true",
    }
    return {
        "encoder": encoder,
        "encoder_conf": own + more[encoder],
        "decoder": "transformer",
        "decoder_conf": "attention_heads=2 linear_units=8 num_blocks=1 "
        "dropout_rate=0.1",
        "model_conf": "ctc_weight=0.3 lsm_weight=0.1",
        **SPECAUG,
    }


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
                noise = rng.standard_normal(2400 * len(wav))
                samples = np.concatenate(wav) + 0.01 * noise
                key = f"spk-{name}-{number:03d}"
                ark[key] = (8000, (samples * 8000).astype(np.int16))
                texts.append(f"{key} " + " ".join(WORDS[tone] for tone in tones))
                lengths.append(f"{key} {len(samples)}")
        (folder / "text").write_text("\n".join(texts) + "\n")
        (folder / "shape").write_text("\n".join(lengths) + "\n")


def arguments(
    root: Path, output: Path, *more: str, model: Mapping[str, str] = RNN
) -> list[str]:
    """Return the options of a training of two short epochs."""
    options = ["--use_preprocessor", "true", "--token_type", "word"]
    options += ["--token_list", str(root / "tokens.txt"), "--ngpu", "0"]
    for name in ("train", "valid"):
        data = f"--{name}_data_path_and_name_and_type"
        options += [data, f"{root}/{name}/wav.scp,speech,kaldi_ark"]
        options += [data, f"{root}/{name}/text,text,text"]
        options += [f"--{name}_shape_file", str(root / name / "shape")]
    frontend = {"frontend_conf": "fs=8000 n_fft=256 hop_length=160 n_mels=8"}
    for key, values in (frontend | {"optim_conf": "lr=0.01"} | dict(model)).items():
        for value in values.split():
            options += [f"--{key}", value]
    options += ["--optim", "adam", "--batch_type", "sorted"]
    options += ["--batch_size", "4", "--num_workers", "0", "--num_att_plot", "0"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    options += ["--max_epoch", "2", "--best_model_criterion", "valid,loss,min"]
    return [*options, "--resume", "true", "--output_dir", str(output), *more]


def be_learner(rank: int, size: int, rendezvous: Path) -> list[str]:
    """Set this process up as learner `rank`; returns the options that say so."""
    os.environ.pop("RANK", None)
    options = ["--dist_world_size", str(size), "--dist_rank", str(rank)]
    options += ["--dist_init_method", f"file://{rendezvous}"]
    return [*options, "--multiprocessing_distributed", "false"]


def write_toy_text(root: Path) -> None:
    """Write what a language model trains on: tokens, and two sets of two sentences."""
    (root / "tokens.txt").write_text("<blank>\n<unk>\none\ntwo\n<sos/eos>\n")
    for part in ("train", "valid"):
        (root / f"{part}.txt").write_text("a one two\nb two\n")
        (root / f"{part}.shape").write_text("a 2\nb 1\n")


def lm_arguments(root: Path, *more: str) -> list[str]:
    """Return the options of a language model's training of one epoch, in `root/lm`."""
    options = ["--ngpu", "0", "--use_preprocessor", "true", "--token_type", "word"]
    options += ["--token_list", str(root / "tokens.txt"), "--num_workers", "0"]
    for part in ("train", "valid"):
        path = f"{root}/{part}.txt"
        options += [f"--{part}_data_path_and_name_and_type", f"{path},text,text"]
        options += [f"--{part}_shape_file", f"{root}/{part}.shape"]
    for option in ("rnn_type=lstm", "unit=4", "nlayers=1"):
        options += ["--lm_conf", option]
    options += ["--batch_type", "sorted", "--batch_size", "2", "--max_epoch", "1"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    return [*options, "--output_dir", str(root / "lm"), "--resume", "true", *more]
