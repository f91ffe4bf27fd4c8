"""The module trains, decodes and scores mini_ocr by a method with a seed."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from recipes.recipe import RECIPES
from report import ROOT

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table
from espnet_distopt.files.writing import write_text
from lines.methods import CONFIG, ORDER, SCALES, Method

BUILD = ROOT / "build/text_lines"
RECIPE = RECIPES["mini_ocr"]
MODEL = "latest.pth"
SHAPES = RECIPE.path / "exp/stats_char"


class StepFailedError(InputError):
    """A command has failed; the message names its log."""


def run(method: Method, seed: int, build: Path) -> dict[str, Any]:
    """Return the losses and the error rates of a method with a seed.

    Raises:
        InputError: the recipe has not been prepared, or a step has failed.
    """
    if not (SHAPES / "valid/text_shape.char").exists():
        raise InputError(f"{SHAPES} is missing: {RECIPE.path}/run.sh --stop_stage 10")
    trained = f"rows={method.least_rows} {' '.join(method.options)}"
    folder = build / re.sub(r"[^\w.=]+", "_", trained) / str(seed)
    data = formatted(method.least_rows, build)
    began = time.monotonic()
    train(method, seed, data, folder)
    seconds = time.monotonic() - began
    checkpoint = torch.load(folder / "checkpoint.pth", weights_only=False)
    epochs = checkpoint["reporter"]["stats"]
    scales = chosen_scales(method.search, folder, data)
    options = search_options(method.search, scales, folder)
    return {
        "seconds": round(seconds),
        "valid_losses": [float(epochs[n]["valid"]["loss"]) for n in sorted(epochs)],
        "scales": scales,
        "cer": errors(
            folder, data / RECIPE.test_set, folder / method.search / "test", *options
        ),
    }


def chosen_scales(search: str, folder: Path, data: Path) -> tuple[float, float]:
    """Return the pair of `lm_weight` and `penalty` with the fewest errors on dev."""
    tried = SCALES[search]
    if len(tried) == 1:
        return tried[0]
    rates = {}
    for scales in tried:
        out = folder / search / "dev_{}_{}".format(*scales)
        options = search_options(search, scales, folder)
        rates[scales] = errors(folder, data / "dev", out, *options)["all"]
    return min(rates, key=rates.__getitem__)


def search_options(
    search: str, scales: tuple[float, float], folder: Path
) -> tuple[str, ...]:
    """Write the configuration of a search, and return the options of ocr_inference."""
    config = folder / f"{search}.yaml"
    weight, penalty = scales
    write_text(config, f"search: {search}\nlm_weight: {weight}\npenalty: {penalty}\n")
    options = ("--config", str(config))
    if search != "ngram_beam":
        return options
    arpa = folder / "characters.arpa"
    if not arpa.exists():
        step(
            folder / "ngram.log",
            *("make_ngram", "--text", "dump/train/text", "--order", str(ORDER)),
            *("--token_list", "data/token_list/char/tokens.txt", "--out", str(arpa)),
        )
    return (*options, "--ngram_file", str(arpa))


def formatted(least_rows: int, build: Path) -> Path:
    """Return the folder of the recipe's lines, scaled as the method wants them."""
    if not least_rows:
        return RECIPE.path / "dump"
    out = build / f"dump_{least_rows}"
    for name in ("train", "dev", "test"):
        if not (out / name).exists():
            step(
                build / f"format_{least_rows}.log",
                *("format_lines", f"data/{name}", str(out / name)),
                *("--height", "32", "--least_rows", str(least_rows)),
                *(["--keep_all"] if name == "test" else []),
            )
    return out


def train(method: Method, seed: int, data: Path, folder: Path) -> None:
    """Train by stock ESPnet in one process, and go on if a run was stopped."""
    options = ["--config", str(CONFIG)]
    options += ["--line_least_rows", str(method.least_rows), *method.options]
    options += ["--use_preprocessor", "true", "--token_type", "char"]
    options += ["--bpemodel", "none", "--normalize", "none", "--ngpu", "0"]
    options += ["--token_list", "data/token_list/char/tokens.txt"]
    options += ["--fold_length", "800", "--fold_length", "150"]
    for kind, name, shapes in (("train", "train", "train"), ("valid", "dev", "valid")):
        inputs = f"--{kind}_data_path_and_name_and_type"
        options += [inputs, f"{data}/{name}/feats.scp,speech,kaldi_ark"]
        options += [inputs, f"{data}/{name}/text,text,text"]
        options += [f"--{kind}_shape_file", f"{data}/{name}/utt2num_frames"]
        options += [f"--{kind}_shape_file", f"{SHAPES}/{shapes}/text_shape.char"]
    options += ["--seed", str(seed), "--resume", "true", "--output_dir", str(folder)]
    step(folder / "train.out", "ocr_train", *options)


def errors(folder: Path, data: Path, out: Path, *options: str) -> dict[str, float]:
    """Decode a set; return its character error rates in percent, by part.

    Args:
        folder: the experiment.
        data: the set.
        out: the folder for the texts and the scores.
        options: more options of ocr_inference; without any, the search is greedy.
    """
    step(
        out / "decode.log",
        *("ocr_inference", "--exp", str(folder), "--model", MODEL),
        *("--data", str(data), "--out", str(out), *options),
    )
    # The development set has no lines in unseen fonts.
    present = read_table(data / "utt2spk", str)
    halves = [
        f"--half={name}={part}"
        for name, part in RECIPE.halves.items()
        if any(re.search(part, line) for line in present)
    ]
    step(
        out / "score.log",
        *("score_lines", "--ref", f"{data}/text", "--hyp", f"{out}/text"),
        *("--utt2spk", f"{data}/utt2spk", "--out", str(out), *halves),
    )
    result = json.loads((out / "score_cer/result.json").read_text(encoding="utf-8"))
    return {name: counts["error_rate"] for name, counts in result["halves"].items()}


def step(log: Path, name: str, *arguments: str) -> None:
    """Run a command of the package in the recipe's folder.

    Raises:
        StepFailedError: the command has failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", f"espnet_distopt.bin.{name}", *arguments]
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(
            command, cwd=RECIPE.path, stdout=file, stderr=file, check=False
        )
    if done.returncode:
        raise StepFailedError(f"{name} has failed, see {log}")
