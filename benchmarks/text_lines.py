"""The benchmark tries options of text-line recipes on mini_ocr, seed by seed.

A method is a change of the training, or a search of the texts. All trainings are those
of one process (stock ESPnet); the recipe's model is made smaller and converges in three
epochs, the last of which is decoded. With equal seeds the order of batches is equal,
and so is the initial model where a method adds no parameters. The table has the
differences from the reference by seed, with the 95 % interval of their mean. The
options of a search are chosen on the development set.

    egs/mini_ocr/ocr1/run.sh --stop_stage 10     # 2 minutes
    python benchmarks/text_lines.py              # 5 minutes for each training
    python benchmarks/text_lines.py --report     # only the table of what is done

The result of each training is a line of results/text_lines.jsonl, with its commit. A
training that has a line is not run again, and one that was stopped goes on from its
last epoch. The trained models stay in build/text_lines.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from recipes.recipe import RECIPES
from recipes.tables import in_words, paired
from report import ROOT, machine, write_report

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.tables import read_table
from espnet_distopt.files.writing import write_text
from espnet_distopt.files.yaml import read_yaml

SEEDS = (0, 1, 2)
CONFIG = ROOT / "benchmarks/text_lines.yaml"
"""The configuration of all trainings."""


@dataclass(frozen=True)
class Method:
    """A way to train and to decode.

    Attributes:
        name: the name in the table.
        options: the options of the training in addition to `CONFIG`.
        least_rows: the rows to which lower images are padded; 0 for none.
        search: the search that decodes.
    """

    name: str
    options: tuple[str, ...] = ()
    least_rows: int = 0
    search: str = "greedy"


SHORTCUT = (
    *("--encoder_conf", "shortcut=true"),
    *("--model_conf", "interctc_weight=0.1"),
)
MAX = ("--encoder_conf", "columns=max")
HIGHEST = 56
"""The rows of the highest image of mini_ocr; the lowest ones have half as many."""

METHODS = (
    Method("reference"),
    Method("shortcut", SHORTCUT),
    Method("padding", least_rows=HIGHEST),
    Method("column maxima", MAX),
    Method("prefix beam", search="prefix_beam"),
    Method("prefix beam and n-gram", search="ngram_beam"),
)
"""The first is what the others are compared with."""

SCALES = {
    "greedy": ((0.0, 0.0),),
    "prefix_beam": ((0.0, 0.0),),
    "ngram_beam": ((0.2, 0.0), (0.2, 0.5), (0.4, 0.5), (0.4, 1.0), (0.6, 1.0)),
}
"""Search -> the pairs of `lm_weight` and `penalty` that are tried on the dev set."""

ORDER = 6
"""The order of the n-gram over the characters of the training text."""


class Results:
    """The results of the present settings; those of others stay in the file.

    Args:
        path: the file of the results, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}

    def read(self) -> None:
        """Read the file, to which other runs may have added results."""
        if self._path.exists():
            whole = self._path.read_text(encoding="utf-8").rpartition("\n")[0]
            for line in whole.splitlines():
                record = json.loads(line)
                self._known[record["key"]] = record["result"]

    def __contains__(self, cell: tuple[Method, int]) -> bool:
        return _key(*cell) in self._known

    def __getitem__(self, cell: tuple[Method, int]) -> dict[str, Any]:
        return self._known[_key(*cell)]

    def add(self, method: Method, seed: int, result: dict[str, Any]) -> None:
        """Keep a result."""
        key, commit = _key(method, seed), machine()["commit"]
        record = {"key": key, "name": method.name, "seed": seed}
        record |= {"commit": commit, "result": result}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self._known[key] = result


def _key(method: Method, seed: int) -> str:
    """Return the digest of all settings, so that none is changed unnoticed."""
    settings = [vars(method), SCALES[method.search], ORDER, read_yaml(CONFIG), seed]
    text = json.dumps(settings, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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


PARTS = ("known", "unseen", "digits", "all")
CAPTION = (
    "Character error rates in percent on the test lines of mini_ocr, and the mean "
    "validation loss of the last epoch: means over the seeds. In brackets are the mean "
    "of the paired differences from the reference, and its 95 % interval by Student's "
    "t. The reference is a small model that converges in three epochs, without "
    "augmentation, so the error rates are above those of the recipe. Printed lines are "
    "synthetic, and the n-gram knows the word list that their texts are from. A method "
    "without a row has no result yet."
)

Figures = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Method -> seed -> result."""


def table(figures: Figures) -> list[str]:
    """Return the lines of a Markdown table; the first method is the reference."""
    head = ["method", "seeds", "loss", *(f"CER {part}" for part in PARTS)]
    lines = [f"| {' | '.join(head)} |", "|---" + "|--:" * (len(head) - 1) + "|"]
    columns = [_losses(figures), *(_rates(figures, part) for part in PARTS)]
    for name in figures:
        cells = [_cell(column, name, name == next(iter(figures))) for column in columns]
        lines.append(f"| {name} | {len(figures[name])} | {' | '.join(cells)} |")
    return lines


Column = Mapping[str, Mapping[int, float]]
"""Method -> seed -> figure."""


def _losses(figures: Figures) -> Column:
    return {
        name: {
            s: r["valid_losses"][-1] for s, r in results.items() if r["valid_losses"]
        }
        for name, results in figures.items()
    }


def _rates(figures: Figures, part: str) -> Column:
    return {
        name: {s: r["cer"][part] for s, r in results.items()}
        for name, results in figures.items()
    }


def _cell(column: Column, name: str, is_reference: bool) -> str:
    if not column[name]:
        return ""
    value = f"{mean(column[name].values()):.2f}"
    difference = paired(column[name], next(iter(column.values())))
    if is_reference or difference is None:
        return value
    return f"{value} [{in_words(difference, '.2f')}]"


RESULTS = ROOT / "benchmarks/results"


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run what has no result yet, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--report", action="store_true", help="only write the table")
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="methods whose name has this in it"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of results")
    args = parser.parse_args(cmd)
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    results = Results(args.out / "text_lines.jsonl")
    chosen = [] if args.report else METHODS
    for method in chosen:
        for seed in SEEDS if re.search(args.only, method.name) else ():
            results.read()
            if (method, seed) not in results:
                print(f"{method.name}, seed {seed}", file=sys.stderr, flush=True)
                results.add(method, seed, run(method, seed, BUILD))
    results.read()
    found = {
        method.name: {s: results[method, s] for s in SEEDS if (method, s) in results}
        for method in METHODS
    }
    figures = {name: by_seed for name, by_seed in found.items() if by_seed}
    write_report(
        "text_lines",
        False,
        args.out,
        table(figures),
        CAPTION,
        figures,
        seeds=SEEDS,
        repeats=1,
        arguments=[],
    )


if __name__ == "__main__":
    main()
