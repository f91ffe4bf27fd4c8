"""ESPnet3's smallest recipe, mini_an4, trained by learners of chosen speeds.

The recipe ships its speech within ESPnet's wheel. ESPnet3 is that of .venv/espnet3,
where `tools/setup.sh --dev` puts it. As a program, in the folder of a copy of the
recipe, the module runs stages one after the other; each NAME is that of a configuration
in conf/, and the corpus gets COPIES of each of its four utterances for training:

    python -m mini_an4 prepare NAME COPIES
    torchrun --nproc_per_node 2 -m mini_an4 train NAMES...
    python -m mini_an4 score NAMES...
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import yaml


class Paced(pl.Callback):
    """Makes the forward and backward pass of a learner take a given time.

    What it writes is one JSON list for each event: the event ("begin", "batch", "step",
    "end" for the fit; "met" once in each epoch), the time, and the utterances of a
    batch. Learners have met where validation begins or, without one, the epoch ends.

    Args:
        path: a file to which the learner's number is added.
        seconds: the seconds of each learner's passes; they take as long as they need,
            if that is more.
    """

    def __init__(self, path: str, seconds: Sequence[float]) -> None:
        self._path, self._seconds = path, seconds
        self._began = 0.0
        self._met = False
        self._lines: list[str] = []

    def _note(self, event: str, *what: Any) -> None:
        self._lines.append(json.dumps([event, time.monotonic(), *what]))

    def on_train_start(self, *_: Any) -> None:
        """Note the beginning."""
        self._note("begin")

    def on_train_epoch_start(self, *_: Any) -> None:
        """Begin an epoch."""
        self._met = False

    def on_train_batch_start(
        self, trainer: pl.Trainer, module: Any, batch: Any, *_: Any
    ) -> None:
        """Note the utterances of the batch."""
        self._began = time.monotonic()
        self._note("batch", batch[0])

    def on_after_backward(self, trainer: pl.Trainer, *_: Any) -> None:
        """Sleep for what is left of the learner's time."""
        due = self._began + self._seconds[trainer.global_rank]
        time.sleep(max(0.0, due - time.monotonic()))

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the end of a step."""
        self._note("step")

    def on_validation_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note that the learners have met."""
        if not (self._met or trainer.sanity_checking):
            self._note("met")
            self._met = True

    def on_train_epoch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Note it here, where there was no validation."""
        self.on_validation_start(trainer)

    def on_train_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """Write everything."""
        self._note("end")
        with open(f"{self._path}.{trainer.global_rank}", "w", encoding="utf-8") as file:
            print(*self._lines, sep="\n", file=file)


ROOT = Path(__file__).resolve().parents[1]
PACKAGES = Path(sys.prefix, "espnet3")
UTTERANCES = 4
"""The number of utterances for training, of which the corpus may get copies."""

OURS = "espnet_distopt.lightning.DistoptStrategy"

# The recipe's converter of SPHERE files is not to be had from Debian.
_SPH2PIPE = """
    #!{python}
    import io, sys, wave
    from pathlib import Path
    from espnet_distopt.recipes.corpora.audio.sphere import SphereFile
    with SphereFile(Path(sys.argv[-1])) as file:
        samples = file.read(0, file.header.samples, 0)
        out = io.BytesIO()
        with wave.open(out, "wb") as wav:
            wav.setparams((1, 2, file.header.sample_rate, 0, "NONE", ""))
            wav.writeframes(samples.astype("<i2").tobytes())
    sys.stdout.buffer.write(out.getvalue())
"""


class Recipe:
    """The recipe in a folder of its own, for a number of learners.

    Args:
        folder: a folder that is not there yet.
        learners: the number of learners.

    Raises:
        FileNotFoundError: ESPnet3 is not there.
    """

    def __init__(self, folder: Path, learners: int) -> None:
        self.folder, self.learners = folder, learners
        shutil.copytree(PACKAGES / "egs3" / "mini_an4" / "esp2_asr", folder)
        tool = folder / "bin" / "sph2pipe"
        tool.parent.mkdir()
        text = textwrap.dedent(_SPH2PIPE).lstrip()
        tool.write_text(text.format(python=sys.executable))
        tool.chmod(0o755)
        self._configure_inference()

    def _configure_inference(self) -> None:
        conf = self.folder / "conf"
        config = yaml.safe_load((conf / "inference.yaml").read_text())
        del config["dataset"]["test"][0]  # The one utterance of validation.
        # Dask then decodes in the process itself, and not in one that it starts.
        options = {"processes": False}
        config["parallel"] = {"env": "local", "n_workers": 1, "options": options}
        # Stock DDP has no best checkpoint: it drops the one utterance of validation.
        config["model"]["asr_model_file"] = "${exp_dir}/last.ckpt"
        (conf / "i.yaml").write_text(yaml.safe_dump(config))

    def configure(
        self, name: str, strategy: Any, seconds: Sequence[float], **trainer: Any
    ) -> None:
        """Write the configuration of a training; stock but for the strategy.

        Args:
            name: the name of the training.
            strategy: what the YAML says under `trainer.strategy`.
            seconds: those of each learner's passes over a batch of one utterance.
            trainer: what the YAML says else under `trainer`.
        """
        conf = self.folder / "conf"
        config = yaml.safe_load((conf / "training_asr_transformer.yaml").read_text())
        # Augmentation needs a library more.
        for key in [k for k in config["dataset"]["preprocessor"] if "data_aug" in k]:
            del config["dataset"]["preprocessor"][key]
        config["dataloader"]["train"]["iter_factory"]["batches"]["batch_size"] = 1
        config |= {"parallel": None, "num_device": self.learners}
        paced = {
            "_target_": "mini_an4.Paced",
            "path": str(self.folder / name),
            "seconds": list(seconds),
        }
        config["trainer"] = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "log_every_n_steps": 1,
            "callbacks": [paced],
            "strategy": strategy,
            **trainer,
        }
        (conf / f"{name}.yaml").write_text(yaml.safe_dump(config))

    def prepare(self, name: str, copies: int) -> None:
        """Prepare the corpus, with copies of each utterance for training."""
        self._run([], ["prepare", name, str(copies)])

    def train(self, *names: str, timeout: float = 600) -> None:
        """Make the trainings of these names, one after the other."""
        count = ["--nproc_per_node", str(self.learners)]
        torchrun = ["torch.distributed.run", "--standalone", *count, "-m"]
        self._run(torchrun, ["train", *names], timeout)

    def score(self, *names: str) -> None:
        """Decode with each training's model, and score, as stock ESPnet3 does."""
        self._run([], ["score", *names])

    def _run(
        self, launcher: Sequence[str], words: Sequence[str], timeout: float = 600
    ) -> None:
        done = subprocess.run(
            [sys.executable, "-m", *launcher, "mini_an4", *words],
            cwd=self.folder,
            env={**os.environ, **self._environment()},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            said = done.stdout[-3000:] + done.stderr[-3000:]
            raise RuntimeError(f"mini_an4 {' '.join(words)}:\n{said}")

    def _environment(self) -> Mapping[str, str]:
        """Return what gives ESPnet3 to a process, before all other packages."""
        places = [PACKAGES, self.folder, ROOT / "benchmarks", ROOT]
        return {
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
        }

    def events(self, name: str) -> list[list[Any]]:
        """Return the events that each learner has noted; see `Paced`."""
        found = []
        for rank in range(self.learners):
            lines = (self.folder / f"{name}.{rank}").read_text().splitlines()
            found.append([json.loads(line) for line in lines])
        return found

    def utterances(self, name: str) -> list[list[str]]:
        """Return the numbers of the utterances on which each learner was trained."""
        return [
            [u for event, _, *given in events if event == "batch" for u in given[0]]
            for events in self.events(name)
        ]


STAGES = {
    "prepare": ["create_dataset", "train_tokenizer", "collect_stats"],
    "train": ["train"],
    "score": ["infer", "measure"],
}


def _enlarge(manifest: Path, copies: int) -> None:
    lines = manifest.read_text().splitlines()
    manifest.write_text(
        "".join(f"{n}{line}\n" for n in range(copies) for line in lines)
    )


def _run(task: str, name: str, copies: int = 1) -> None:
    """Run the stages of a task with a configuration."""
    from espnet3.systems.esp2_asr.system import ASRSystem
    from espnet3.systems.launch import launch

    roles = {"training": name, "inference": "i", "metrics": "metrics"}
    configs = [f"--{role}_config=conf/{each}.yaml" for role, each in roles.items()]
    for stage in STAGES[task]:
        launch(ASRSystem, argv=["--stages", stage, *configs])
        if stage == "create_dataset":
            _enlarge(Path("data/manifest/train.tsv"), copies)


def main() -> None:
    """Run the task of the command line."""
    task, *names = sys.argv[1:]
    if task == "prepare":
        _run(task, names[0], int(names[1]))
    else:
        for name in names:
            _run(task, name)


if __name__ == "__main__":
    main()
