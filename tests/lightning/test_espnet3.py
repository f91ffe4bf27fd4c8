"""ESPnet3: its seams by stand-ins of the same names, and its smallest recipe whole."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
import yaml
from torch.utils.data import DataLoader

from tests.lightning.toy import Toy, data, strategy, trainer
from tests.processes import launch


class EpochSyncIterator:
    """Like ESPnet3's: iterating over it would make the learners meet."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source())

    def __iter__(self) -> Iterator[Any]:
        yield from ()  # Lightning calls this, but must not ask for a batch.
        raise AssertionError("the learners would meet before each batch")


class ESPnetLightningModule(Toy):
    """Like ESPnet3's: it builds its loaders itself, anew for each epoch."""

    def __init__(self) -> None:
        super().__init__()
        parts = {"train": {}, "valid": {"batch_distribution": "per_gpu"}}
        self.config = SimpleNamespace(num_device=2, dataloader=parts)

    def train_dataloader(self) -> Any:
        assert self.config.num_device == 1
        batches = [[2 * n, 2 * n + 1] for n in range(7)]
        return EpochSyncIterator(partial(DataLoader, data(), batch_sampler=batches))

    def val_dataloader(self) -> Any:
        batches = [[n, n + 1] for n in range(3)]
        return EpochSyncIterator(partial(DataLoader, data(), batch_sampler=batches))


def fits(folder: Path) -> dict[str, Any]:
    found = {}
    for name in ("adpsgd", "bmuf_adam"):
        module = ESPnetLightningModule()
        own = {"reload_dataloaders_every_n_epochs": 1, "use_distributed_sampler": False}
        fitted = trainer(
            folder, strategy(name), dist.get_world_size(), max_epochs=2, **own
        )
        fitted.fit(module)
        found[name] = module.seen, module.losses
    return found


def test_learners_do_not_meet_in_steps_and_divide_whole_batches(tmp_path: Path) -> None:
    found = launch(2, fits, tmp_path, timeout=100)
    alone = Counter(n for learner in found for n in learner["adpsgd"][0])
    assert alone == Counter({n: 2 for n in range(14)})
    # Those that step together need equally many, so the last batch is left out.
    together = [learner["bmuf_adam"][0] for learner in found]
    assert together == [[0, 1, 4, 5, 8, 9] * 2, [2, 3, 6, 7, 10, 11] * 2]
    for name in ("adpsgd", "bmuf_adam"):
        losses = [learner[name][1] for learner in found]
        assert losses[0] == losses[1]


def installed() -> bool:
    """Return whether ESPnet 202611 is there with what its recipes import."""
    names = ("espnet3", "egs3", "espnet_model_zoo", "hydra", "omniio", "dask")
    return all(importlib.util.find_spec(name) for name in names)


SPH2PIPE = """
    #!{python}
    import io, sys, wave
    from pathlib import Path
    from espnet_distopt.corpora.audio.sphere import SphereFile
    with SphereFile(Path(sys.argv[-1])) as file:
        samples = file.read(0, file.header.samples, 0)
        out = io.BytesIO()
        with wave.open(out, "wb") as wav:
            wav.setparams((1, 2, file.header.sample_rate, 0, "NONE", ""))
            wav.writeframes(samples.astype("<i2").tobytes())
    sys.stdout.buffer.write(out.getvalue())
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Copy mini_an4 from the wheel; its converter of SPHERE files is ours."""
    found = importlib.util.find_spec("egs3")
    assert found is not None and found.submodule_search_locations is not None
    source = Path(found.submodule_search_locations[0], "mini_an4", "esp2_asr")
    folder = tmp_path / "recipe"
    shutil.copytree(source, folder)
    tool = folder / "bin" / "sph2pipe"
    tool.parent.mkdir()
    text = textwrap.dedent(SPH2PIPE).lstrip().format(python=sys.executable)
    tool.write_text(text)
    tool.chmod(0o755)
    return folder


def configure(recipe: Path, name: str, chosen: Any) -> None:
    """Write a configuration; only the strategy differs from stock training."""
    config = yaml.safe_load(
        (recipe / "conf" / "training_asr_transformer.yaml").read_text()
    )
    for key in [k for k in config["dataset"]["preprocessor"] if "data_aug" in k]:
        del config["dataset"]["preprocessor"][key]
    config["dataloader"]["train"]["iter_factory"]["batches"]["batch_size"] = 1
    options = {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1}
    trainer = {**options, "strategy": chosen}
    config |= {"parallel": None, "num_device": 2, "trainer": trainer}
    (recipe / "conf" / f"{name}.yaml").write_text(yaml.safe_dump(config))


def run(recipe: Path, name: str, *stages: str) -> str:
    """Run stages of the recipe; return what it says."""
    path = os.pathsep.join([str(recipe), os.environ.get("PYTHONPATH", "")])
    roles = {"training": name, "inference": "i", "metrics": "metrics"}
    configs = [f"--{role}_config=conf/{each}.yaml" for role, each in roles.items()]
    done = subprocess.run(
        [sys.executable, "run.py", "--stages", *stages, *configs],
        cwd=recipe,
        env=os.environ
        | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        | {"PATH": f"{recipe / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.recipes
@pytest.mark.timeout(2400)
@pytest.mark.skipif(not installed(), reason="no ESPnet 202611 with its recipes")
def test_mini_an4_is_trained_decoded_and_scored(recipe: Path) -> None:
    inference = yaml.safe_load((recipe / "conf" / "inference.yaml").read_text())
    # Stock DDP has no best checkpoint: it drops the one utterance of validation.
    inference["model"]["asr_model_file"] = "${exp_dir}/last.ckpt"
    (recipe / "conf" / "i.yaml").write_text(yaml.safe_dump(inference))
    ours = "espnet_distopt.lightning.DistoptStrategy"
    strategies = {
        "ddp": "ddp",
        "adpsgd": {"_target_": ours, "algorithm": "adpsgd"},
        "bmuf_adam": {"_target_": ours, "algorithm": "bmuf_adam"},
    }
    for name, chosen in strategies.items():
        configure(recipe, name, chosen)
    run(recipe, "ddp", "create_dataset", "train_tokenizer", "collect_stats")
    for name in strategies:
        run(recipe, name, "train", "infer", "measure")
        exp = recipe / "exp" / name
        assert "WER" in (exp / "i" / "metrics.json").read_text()
