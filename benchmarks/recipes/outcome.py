"""The figures of a trained cell: losses, staleness, and errors of the last model.

The model is that of the last epoch, which under every algorithm is the consensus. It is
decoded by the best path: the best token of each frame, without repetitions and blanks.
"""

import json
import math
import sys
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from espnet_distopt.espnet.training.progress import ALL_WRONG
from espnet_distopt.files.tables import read_table, write_table
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.recipes.commands import decoding, scoring
from recipes.recipe import Recipe

# ESPnet prints while it is imported.
with redirect_stdout(sys.stderr):
    from espnet2.text.build_tokenizer import build_tokenizer

    from espnet_distopt.recipes.models.ctc import CTCModel

MODEL = "latest.pth"
GREEDY = "conf/decode_greedy.yaml"
"""The configuration with which the recipe of text lines decodes by the best path."""


def measure(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Return the figures of a cell. The working directory is the recipe's folder.

    Args:
        recipe: the recipe.
        folder: the experiment.
    """
    figures = training(folder)
    return figures if recipe.task == "hybrid" else {**figures, **errors(recipe, folder)}


def training(folder: Path) -> dict[str, Any]:
    """Return what ESPnet's reporter says of the last epoch, and all validation losses.

    Args:
        folder: the experiment, whose checkpoint is this project's own.
    """
    checkpoint = torch.load(folder / "checkpoint.pth", weights_only=False)
    epochs = checkpoint["reporter"]["stats"]
    last = epochs[max(epochs)]
    figures = {
        "epochs": len(epochs),
        "valid_loss": _number(last["valid"]["loss"]),
        "train_loss": _number(last["train"]["loss"]),
        "valid_losses": [_number(epochs[n]["valid"]["loss"]) for n in sorted(epochs)],
    }
    if math.isfinite(last["valid"].get("acc", math.nan)):
        figures["fer"] = {"all": 100 * (1 - float(last["valid"]["acc"]))}
    if "cer_ctc" in last["valid"]:
        left = [
            n for n in sorted(epochs) if epochs[n]["valid"]["cer_ctc"] < ALL_WRONG[0]
        ]
        figures["leaves_plateau"] = left[0] if left else None
    for name in ("staleness", "staleness_max", "consensus_distance"):
        for phase in ("train", "valid"):
            if name in last[phase]:
                figures[name] = _number(last[phase][name])
    return figures


def errors(recipe: Recipe, folder: Path) -> dict[str, Any]:
    """Decode and score the test set; return its error rates in percent, by half."""
    data = Path("dump") / recipe.test_set
    decode = _decode_speech if recipe.task == "asr" else _decode_lines
    decode(folder, data)
    arguments = ["--ref", f"{data}/text", "--hyp", f"{folder}/decoded/text"]
    arguments += ["--utt2spk", f"{data}/utt2spk", "--out", f"{folder}/scored"]
    for name, pattern in recipe.halves.items():
        arguments += ["--half", f"{name}={pattern}"]
    if recipe.task == "asr":
        scoring.score_command(arguments)
        found = [folder / "scored/result.json"]
    else:
        scoring.score_lines_command(arguments)
        found = sorted(folder.glob("scored/score_*/result.json"))
    figures: dict[str, Any] = {}
    for path in found:
        result = json.loads(path.read_text(encoding="utf-8"))
        figures["scorer"] = result["scorer"]
        figures[result["measure"].lower()] = {
            half: counts["error_rate"] for half, counts in result["halves"].items()
        }
    return figures


def _decode_speech(folder: Path, data: Path) -> None:
    model = CTCModel(folder / "config.yaml", folder / MODEL)
    config = read_yaml(folder / "config.yaml")
    tokenizer: Any = build_tokenizer(
        token_type=config["token_type"], bpemodel=config["bpemodel"]
    )
    lengths = read_table(data / "utt2num_samples", int)
    wavs = read_table(data / "wav.scp", str)
    ordered = {name: wavs[name] for name in sorted(wavs, key=lengths.__getitem__)}
    texts = {}
    for name, posteriors in model.posteriors(ordered):
        path = [index for index, _ in groupby(posteriors.argmax(1).tolist())]
        tokens = [model.tokens[index] for index in path if index > 0]
        texts[name] = " ".join(tokenizer.tokens2text(tokens).split())
    (folder / "decoded").mkdir()
    write_table(folder / "decoded/text", texts)


def _decode_lines(folder: Path, data: Path) -> None:
    decoding.ocr_inference_command(
        [
            *("--exp", str(folder), "--model", MODEL, "--data", str(data)),
            *("--config", GREEDY, "--out", f"{folder}/decoded"),
            *("--job", "1", "--nj", "1"),
        ]
    )


def _number(value: Any) -> float | None:
    """Return a number that JSON can hold; a loss may be infinite."""
    number = float(value)
    return number if math.isfinite(number) else None
