"""The module times whole trainings of a hybrid system's model, data and all.

The features are random numbers, so the models learn nothing, but every step is made as
in a recipe: by ESPnet's trainer, from files.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from accelerator.layers import BOTTLENECK, Size
from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.corpora.kaldi.arks import FloatArkWriter
from espnet_distopt.recipes.hmm.alignments import write_alignments
from espnet_distopt.recipes.hmm.language import PhoneStates, write_states

FEATURES = 120
UTTERANCE = 700
"""The frames of an utterance."""

EPOCHS = 2


def measure(
    size: Size, device: str, steps: int, limit: float
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (what, seconds of a step's parts) for captured and for eager steps.

    The parts are those of ESPnet's log: `train_time` is the whole step, `iter_time` the
    wait for data.

    Args:
        size: The size of the network and of its batches.
        device: cuda or cpu.
        steps: The number of steps of an epoch, the last of which counts.
        limit: Seconds after which a training is given up.
    """
    with TemporaryDirectory() as folder:
        root = Path(folder)
        _write(root, size, steps)
        for capture, mixed in ((True, True), (False, True), (True, False)):
            name = "captured" if capture else "eager"
            name += ", mixed precision" if mixed else ", float32"
            exp = root / name.replace(", ", "_").replace(" ", "_")
            yield name, _train(root, exp, size, device, (capture, mixed), limit)


def _write(root: Path, size: Size, steps: int) -> None:
    rng = np.random.default_rng(0)
    phones = PhoneStates(("SIL", *(f"p{n}" for n in range(size.outputs // 3 - 1))))
    write_states(root / "states.txt", phones)
    for name, batches in (("train", steps), ("valid", 1)):
        (root / name).mkdir()
        write_states(root / name / "states.txt", phones)
        utterances = batches * size.chunks * size.frames // UTTERANCE + 1
        pdfs = {}
        with FloatArkWriter(root / name / "feats.ark") as ark:
            for number in range(utterances):
                key = f"{name}-{number:05d}"
                drawn = rng.integers(0, len(phones), UTTERANCE)
                pdfs[key] = drawn.astype(np.int32)
                feats = rng.standard_normal((UTTERANCE, FEATURES), dtype=np.float32)
                ark[key] = feats
        write_table(root / name / "feats.scp", ark.locations)
        write_alignments(root / name, root / name, pdfs, len(phones))


def _train(
    root: Path,
    exp: Path,
    size: Size,
    device: str,
    how: tuple[bool, bool],
    limit: float,
) -> dict[str, float]:
    """Train; return the seconds of the last epoch's steps, by ESPnet's names."""
    capture, mixed = how
    options = ["--token_list", str(root / "states.txt"), "--input_size", str(FEATURES)]
    options += ["--ngpu", str(int(device == "cuda")), "--use_amp", str(mixed).lower()]
    options += ["--capture_steps", str(capture).lower(), "--output_dir", str(exp)]
    for name in ("train", "valid"):
        data = f"--{name}_data_path_and_name_and_type"
        options += [data, f"{root}/{name}/ali.scp,states,kaldi_ark"]
        options += [data, f"{root}/{name}/feats.scp,speech,kaldi_ark"]
        options += [f"--{name}_shape_file", f"{root}/{name}/utt2num_frames"]
    encoder = {
        "use_projection": "false",
        "num_layers": size.layers,
        "hidden_size": size.cells,
        "output_size": BOTTLENECK,
    }
    for key, value in encoder.items():
        options += ["--encoder_conf", f"{key}={value}"]
    options += ["--encoder", "rnn", "--optim", "sgd", "--optim_conf", "lr=0.01"]
    options += ["--iterator_type", "chunk", "--chunk_length", str(size.frames)]
    options += ["--chunk_shift_ratio", "1.0", "--num_cache_chunks", "2048"]
    options += ["--batch_size", str(size.chunks), "--num_workers", "4"]
    options += ["--use_preprocessor", "false", "--normalize", "none"]
    options += ["--max_epoch", str(EPOCHS), "--num_att_plot", "0"]
    options += ["--use_matplotlib", "false", "--use_tensorboard", "false"]
    options += ["--best_model_criterion", "valid,loss,min"]
    module = "espnet_distopt.recipes.commands.hybrid_train"
    command = [sys.executable, "-m", module, *options]
    log = root / "log"
    with log.open("w") as file:
        subprocess.run(command, stdout=file, stderr=file, timeout=limit, check=True)
    (line,) = re.findall(rf" {EPOCHS}epoch results: \[train\] (.*)", log.read_text())
    pairs = re.findall(r"(\w+_time)=([\d.e+-]+)", line.partition("[valid]")[0])
    return {name: float(value.rstrip(".")) for name, value in pairs}
