"""The module has a small problem of real speech: pairs of spoken digits from FSDD."""

import functools
from collections.abc import Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from report import ROOT

from espnet_distopt.files.tables import write_table
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.fsdd import (
    SAMPLE_RATE,
    SPEAKERS,
    WORDS,
    Take,
    deal,
    read_recordings,
)
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, WavArkWriter

if TYPE_CHECKING:
    from espnet_distopt.espnet.training.simulated import EspnetProblem

DIGITS = 2
SETS = {"train": (6000, range(10, 50)), "valid": (600, range(10))}
"""Set -> the number of its digit strings, and the numbers of the recordings that they
use, out of 50 of each digit and speaker."""
LONGEST = 0.6
"""The seconds of the longest recording that is used; nine in ten are no longer."""
KIND = f"{DIGITS} of {LONGEST:g} s"
DATA = ROOT / "build" / "benchmarks" / KIND.replace(" ", "_")
"""The folder of the data. Its name depends on DIGITS and LONGEST, but not on SETS."""
MODEL = ("num_layers=1", "hidden_size=48", "output_size=48")
ABOUT = (
    "pairs of digits from FSDD by six speakers, 6,000 for training and 600 of other "
    "recordings held out; 40 log-mel features each 30 ms, computed once; a BLSTM of 48 "
    "cells a direction, CTC over words; losses are CTC's, per pair"
)


def prepare(fsdd: Path) -> None:
    """Write the data to `DATA`, unless they are there.

    Args:
        fsdd: the folder of a copy of the Free Spoken Digit Dataset.
    """
    if DATA.exists():
        return
    DATA.parent.mkdir(parents=True, exist_ok=True)
    takes = [
        {s: [Take(d, s, i) for d, i in product(range(10), chosen)] for s in SPEAKERS}
        for _, chosen in SETS.values()
    ]
    wanted = (take for deck in takes for deal_ in deck.values() for take in deal_)
    speech = {
        take: samples
        for take, samples in read_recordings(fsdd, wanted).items()
        if len(samples) <= LONGEST * SAMPLE_RATE
    }
    print(f"{len(speech)} recordings of at most {LONGEST} s")
    with whole_directory(DATA, marker="tokens.txt") as new:
        for (name, (strings, _)), deck in zip(SETS.items(), takes, strict=True):
            _write(new / name, DATA / name, strings, deck, speech)
        tokens = ["<blank>", "<unk>", *WORDS, "<sos/eos>"]
        (new / "tokens.txt").write_text("\n".join(tokens) + "\n")


def _write(
    folder: Path,
    named: Path,
    strings: int,
    deck: Mapping[str, Sequence[Take]],
    speech: Mapping[Take, Samples],
) -> None:
    folder.mkdir()
    rng = np.random.default_rng([*named.name.encode()])
    dealers = {
        speaker: deal([take for take in takes if take in speech], rng)
        for speaker, takes in deck.items()
    }
    text = {}
    with WavArkWriter(folder / "wav.ark", named=named / "wav.ark") as ark:
        for number in range(strings):
            speaker = SPEAKERS[number % len(SPEAKERS)]
            takes = list(islice(dealers[speaker], DIGITS))
            utt = f"{speaker}-{number:05d}"
            ark[utt] = (SAMPLE_RATE, np.concatenate([speech[take] for take in takes]))
            text[utt] = " ".join(WORDS[take.digit] for take in takes)
    write_table(folder / "wav.scp", ark.locations)
    write_table(folder / "text", text)


@functools.lru_cache(maxsize=3)
def problem(seed: int) -> "EspnetProblem":
    """Return the problem with a seed; the caller sets its `batch_size`.

    A few problems stay in memory, so that a worker reads the data once per seed.
    """
    # ESPnet takes long to import, and most problems do without it.
    from espnet_distopt.espnet.training.simulated import EspnetProblem

    torch.set_num_threads(1)
    arguments = ["--config", str(ROOT / "conf" / "blstm_small.yaml")]
    arguments += ["--token_type", "word", "--token_list", str(DATA / "tokens.txt")]
    for name in SETS:
        option = f"--{name}_data_path_and_name_and_type"
        arguments += [option, f"{DATA / name}/wav.scp,speech,kaldi_ark"]
        arguments += [option, f"{DATA / name}/text,text,text"]
    for value in MODEL:
        arguments += ["--encoder_conf", value]
    return EspnetProblem(arguments, seed=seed)
