"""Images of lines small enough to train on in a second, and how to run the training."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.corpora.kaldi.arks import MatrixArkWriter
from espnet_distopt.recipes.corpora.lines.images import line_features, read_image

HEIGHT = 16
LETTERS = "abc "
_ROWS = {"a": slice(2, 8), "b": slice(8, 14), "c": slice(2, 14), " ": slice(0, 0)}


def draw(text: str) -> NDArray[np.uint8]:
    """Draw a line, eight columns a letter: a stroke high up, low, or all the way."""
    image = np.full((HEIGHT, 8 * len(text) + 8), 255, np.uint8)
    for number, letter in enumerate(text):
        image[_ROWS[letter], 8 * number + 6 : 8 * number + 9] = 0
    return image


def write_toy_lines(root: Path, train: int = 24, valid: int = 8) -> None:
    rng = np.random.default_rng(0)
    tokens = ["<blank>", "<unk>", "<space>", "a", "b", "c", "<sos/eos>"]
    (root / "tokens.txt").write_text("\n".join(tokens) + "\n")
    for name, count in (("train", train), ("valid", valid)):
        folder = root / name
        folder.mkdir()
        texts = {}
        for number in range(count):
            inner = "".join(rng.choice(list(LETTERS), size=int(rng.integers(1, 5))))
            texts[f"pen-{name}-{number:03d}"] = " ".join(f"a{inner}b".split())
        write_lines(folder, texts)


def write_lines(folder: Path, texts: dict[str, str]) -> None:
    """Write images.scp and feats.scp, text and utt2num_frames."""
    folder.mkdir(exist_ok=True)
    images, columns = {}, {}
    with MatrixArkWriter(folder / "feats.ark") as ark:
        for name, text in texts.items():
            path = folder / f"{name}.png"
            Image.fromarray(draw(text)).save(path)
            images[name] = str(path)
            ark[name] = features = line_features(read_image(path), HEIGHT)
            columns[name] = len(features)
    write_table(folder / "images.scp", images)
    write_table(folder / "feats.scp", ark.locations)
    write_table(folder / "text", texts)
    write_table(folder / "utt2num_frames", columns)


def arguments(root: Path, output: Path, *more: str, kind: str = "") -> list[str]:
    """Return the options of a training of two short epochs.

    Args:
        root: of the data.
        output: the experiment's directory.
        more: further options.
        kind: data type; features from the arks, if it is empty.
    """
    scp, kind = ("images.scp", kind) if kind else ("feats.scp", "kaldi_ark")
    options = ["--use_preprocessor", "true", "--token_type", "char"]
    options += ["--token_list", str(root / "tokens.txt"), "--ngpu", "0"]
    options += ["--input_size", str(HEIGHT), "--bpemodel", "none"]
    for name in ("train", "valid"):
        data = f"--{name}_data_path_and_name_and_type"
        options += [data, f"{root}/{name}/{scp},speech,{kind}"]
        options += [data, f"{root}/{name}/text,text,text"]
        options += [f"--{name}_shape_file", f"{root}/{name}/utt2num_frames"]
    encoder = {"cnn": "compact", "channels": 8, "subsample": 2}
    encoder |= {"num_layers": 1, "hidden_size": 16, "output_size": 16}
    for key, value in encoder.items():
        options += ["--encoder_conf", f"{key}={value}"]
    options += ["--encoder", "cnn_rnn", "--model_conf", "ctc_weight=1.0"]
    options += ["--optim", "adam", "--optim_conf", "lr=0.02"]
    options += ["--batch_type", "sorted", "--batch_size", "4", "--num_workers", "0"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    options += ["--num_att_plot", "0", "--max_epoch", "2"]
    options += ["--best_model_criterion", "valid,loss,min", "--resume", "true"]
    return [*options, "--output_dir", str(output), *more]
