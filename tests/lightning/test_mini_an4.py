"""ESPnet3's smallest recipe, whole: trained by two learners, decoded and scored.

ESPnet3 is that of .venv/espnet3, where `tools/setup.sh --dev` puts it.
"""

import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.lightning.mini_an4 import AGAIN

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(sys.prefix, "espnet3")

pytestmark = [
    pytest.mark.recipes,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not PACKAGES.is_dir() and "CI" not in os.environ,
        reason="no ESPnet3: tools/setup.sh --dev installs it",
    ),
]

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

OURS = "espnet_distopt.lightning.DistoptStrategy"
STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "adpsgd": {"_target_": OURS, "algorithm": "adpsgd"},
    "bmuf_adam": {"_target_": OURS, "algorithm": "bmuf_adam"},
}
SLOW = {"adpsgd": 0.5}
"""Seconds of a step of learner 1."""


def run(recipe: Path, *command: str) -> None:
    """Run a command in the recipe's folder, with ESPnet3 before all other packages."""
    path = os.pathsep.join(map(str, [PACKAGES, recipe, ROOT]))
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=recipe,
        env=os.environ
        | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        | {"PATH": f"{recipe / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def configure(recipe: Path) -> None:
    """Write the configurations; only the strategy differs from stock training."""
    conf = recipe / "conf"
    config = yaml.safe_load((conf / "training_asr_transformer.yaml").read_text())
    # Augmentation needs a library more.
    for key in [k for k in config["dataset"]["preprocessor"] if "data_aug" in k]:
        del config["dataset"]["preprocessor"][key]
    config["dataloader"]["train"]["iter_factory"]["batches"]["batch_size"] = 1
    config |= {"parallel": None, "num_device": 2}
    for name, chosen in STRATEGIES.items():
        watch = {
            "_target_": "tests.lightning.mini_an4.SlowLearner",
            "path": str(recipe / name),
            "seconds": SLOW.get(name, 0.0),
        }
        config["trainer"] = {
            "accelerator": "cpu",
            "max_epochs": 1,
            "log_every_n_steps": 1,
            "callbacks": [watch],
            "strategy": chosen,
        }
        (conf / f"{name}.yaml").write_text(yaml.safe_dump(config))
    inference = yaml.safe_load((conf / "inference.yaml").read_text())
    del inference["dataset"]["test"][0]  # The one utterance of validation.
    # Dask then decodes in the process itself, and not in one that it starts.
    options = {"processes": False}
    inference["parallel"] = {"env": "local", "n_workers": 1, "options": options}
    # Stock DDP has no best checkpoint: it drops the one utterance of validation.
    inference["model"]["asr_model_file"] = "${exp_dir}/last.ckpt"
    (conf / "i.yaml").write_text(yaml.safe_dump(inference))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a copy of the recipe by stock DDP and by two algorithms; score them all."""
    assert PACKAGES.is_dir(), "no ESPnet3: tools/setup.sh --dev installs it"
    folder = tmp_path_factory.mktemp("mini_an4") / "recipe"
    shutil.copytree(PACKAGES / "egs3" / "mini_an4" / "esp2_asr", folder)
    # The recipe's converter of SPHERE files is not to be had from Debian.
    tool = folder / "bin" / "sph2pipe"
    tool.parent.mkdir()
    tool.write_text(textwrap.dedent(SPH2PIPE).lstrip().format(python=sys.executable))
    tool.chmod(0o755)
    configure(folder)
    stages = "tests.lightning.mini_an4"
    run(folder, stages, "prepare", "ddp")
    two = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
    run(folder, *two, stages, "train", *STRATEGIES)
    run(folder, stages, "score", *STRATEGIES)
    return folder


@pytest.mark.parametrize("name", STRATEGIES)
def test_stock_espnet3_decodes_and_scores_what_was_trained(
    recipe: Path, name: str
) -> None:
    exp = recipe / "exp" / name
    assert "WER" in (exp / "i" / "metrics.json").read_text()
    kept = torch.load(exp / "last.ckpt", weights_only=False)["state_dict"]
    assert all(each.isfinite().all() for each in kept.values())


def utterances(recipe: Path, name: str) -> list[list[str]]:
    """Return the numbers of the utterances on which each learner was trained."""
    return [(recipe / f"{name}.{rank}").read_text().split() for rank in range(2)]


def test_a_slow_learner_has_few_batches_and_none_is_dropped(recipe: Path) -> None:
    fast, slow = utterances(recipe, "adpsgd")
    assert Counter(fast + slow) == Counter(map(str, range(4 * AGAIN)))
    assert len(slow) < len(fast)


@pytest.mark.parametrize("name", ["ddp", "bmuf_adam"])
def test_learners_that_step_together_have_equally_many(recipe: Path, name: str) -> None:
    first, second = utterances(recipe, name)
    assert len(first) == len(second) == 2 * AGAIN
    assert not set(first) & set(second)
