"""These tests read every YAML file of the repository with the program it is for."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from espnet2.bin import asr_inference
from espnet2.tasks.abs_task import optim_classes, scheduler_classes
from espnet2.tasks.lm import LMTask

from espnet_distopt.algorithms.options import configure
from espnet_distopt.cluster.settings import read_settings
from espnet_distopt.espnet.training.options import count_epochs
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.recipes.commands import check
from espnet_distopt.recipes.hmm import search as hmm
from espnet_distopt.recipes.models.hybrid.cutting import batches_of_epoch
from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask
from espnet_distopt.recipes.models.ocr.search import Decoding
from espnet_distopt.recipes.models.ocr.task import DistoptOCRTask

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted(
    {
        path.resolve()
        for folder in (ROOT / "conf", *ROOT.glob("egs/*/*/conf"))
        for path in folder.rglob("*.yaml")
    }
)
TUNING = ROOT / "egs" / "swbd" / "asr1" / "conf" / "tuning"
LEARNERS = {"train_hadpsgd_8x8": 64, "train_bmuf_adam_32": 32, "train_bmuf_adam_64": 64}

_ADAM = "--optim adam --optim_conf lr=0.001"
HYBRID = [
    ("adpsgd", 16, 2560, ""),
    ("hadpsgd", 64, 8192, "--batch_size 8192"),
    ("adpsgd", 96, 12288, "--batch_size 12288"),
    ("d1d_model", 128, 16384, "--batch_size 16384"),
    ("bmuf_adam", 32, 4096, f"--batch_size 4096 {_ADAM}"),
    ("bmuf_adam", 64, 8192, f"--batch_size 8192 {_ADAM}"),
]
"""The papers' trainings of docs/hybrid.md: algorithm, learners, batch, and what
`--train_args` adds."""

# The configurations follow from these figures of the recipe and of the papers.
HOURS = 286 * (1 / 0.9 + 1 + 1 / 1.1)
SAMPLES_OF_A_LEARNER, FRAMES_OF_A_SAMPLE, AUDIO_OF_A_FRAME = 128, 21, 80


def kind(path: Path) -> str:
    if path.parent.name.startswith("distopt"):
        return "distopt"
    if path.stem in ("decode_ocr_lm", "decode_ocr_ngram"):
        return "decode_ocr"
    if path.stem in ("decode_ocr", "decode_best_path", "decode_hybrid", "decode_words"):
        return path.stem
    name = path.stem.split("_")[0]
    return {"blstm": "train", "conformer": "train", "cnn": "ocr"}.get(name, name)


def parsed(path: Path) -> argparse.Namespace:
    parser = {
        "train": DistoptASRTask.get_parser,
        "ocr": DistoptOCRTask.get_parser,
        "decode": asr_inference.get_parser,
        "lm": LMTask.get_parser,
        "hybrid": DistoptHybridTask.get_parser,
    }[kind(path)]()
    command = ["--config", str(path)]
    if kind(path) == "decode":
        command += ["--output_dir", "out", "--data_path_and_name_and_type", "a,b,sound"]
    return parser.parse_args(command)


def tuning(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((TUNING / f"{name}.yaml").read_text()))


@pytest.mark.parametrize(
    "path", CONFIGS, ids=lambda path: str(path.relative_to(ROOT).with_suffix(""))
)
def test_every_config_is_read_by_its_program(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    if kind(path) == "distopt":
        check.main(["--distopt_config", str(path), "--nlearners", "4"])
        return
    if kind(path) == "decode_ocr":
        configure(Decoding, content, path.name)
        return
    if kind(path) == "decode_hybrid":
        configure(hmm.Decoding, content, path.name)
        return
    if kind(path) == "decode_words":
        assert content.pop("search") == "words"
        configure(hmm.WordSearch, content, path.name)
        return
    if kind(path) == "decode_best_path":
        assert content == {"search": "best_path"}
        return
    if kind(path) == "slurm":
        read_settings(path, "train")
        return
    args = vars(parsed(path))
    assert {key: args[key] for key in content if not key.endswith("_conf")} == {
        key: value for key, value in content.items() if not key.endswith("_conf")
    }


@pytest.mark.parametrize("hours", [286, 2000])
@pytest.mark.parametrize(("algorithm", "learners", "batch", "train_args"), HYBRID)
def test_the_papers_hybrid_trainings(
    tmp_path: Path,
    algorithm: str,
    learners: int,
    batch: int,
    train_args: str,
    hours: int,
) -> None:
    """The commands of docs/hybrid.md are accepted, and their schedules are right."""
    stated = f"--distopt {algorithm} --nlearners {learners}"
    stated += f' --train_args "{train_args}"' if train_args else ""
    assert f"`{stated}`" in (ROOT / "docs" / "hybrid.md").read_text()
    frames = tmp_path / "utt2num_frames"
    frames.write_text(f"u {hours * 360_000}\n")
    config = ["--config", str(ROOT / "conf" / "hybrid.yaml")]
    distopt = ["--distopt_config", str(ROOT / "conf" / "distopt" / f"{algorithm}.yaml")]
    check.main([*config, *distopt, "--nlearners", str(learners)])
    options = [*train_args.split(), "--train_shape_file", str(frames)]
    args = DistoptHybridTask.get_parser().parse_args([*config, *options])
    # Each learner has 128 chunks where the paper says so, and 160 with 16 learners.
    assert args.batch_size == batch == learners * (160 if learners == 16 else 128)
    count_epochs(args, learners, batches_of_epoch)
    steps = -(-(hours * 360_000 // 21) // batch)
    schedule = args.scheduler_conf
    assert schedule["steps_per_epoch"] == steps
    assert schedule["warmup_steps"] == 10 * steps
    if hours > 286:
        return  # The steps of 2,000 hours take minutes.
    peak = args.optim_conf["lr"]
    shape = [min(1.0, epoch / 10, 2 ** (5 - epoch / 2)) for epoch in range(1, 17)]
    expected = [peak * part for part in shape]
    assert rates(args, steps) == pytest.approx(expected, rel=1e-3)


def rates(args: argparse.Namespace, steps: int) -> list[float]:
    """Return the learning rates at the ends of epochs, from ESPnet's own scheduler."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = optim_classes[args.optim]([weight], **args.optim_conf)
    scheduler = scheduler_classes[args.scheduler](optimizer, **args.scheduler_conf)
    found = []
    for _ in range(args.max_epoch):
        for _ in range(steps):
            rate = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
        found.append(rate)
    return found


@pytest.mark.parametrize(
    "recipe", ROOT.glob("egs/*/*"), ids=lambda path: path.parent.name
)
def test_a_language_model_has_a_weight_in_every_recipe(recipe: Path) -> None:
    config = yaml.safe_load((recipe / "conf" / "decode_lm.yaml").read_text())
    assert 0 < config["lm_weight"] < 1


def test_an_ngram_has_a_weight_where_espnet_searches() -> None:
    for path in CONFIGS:
        if kind(path) == "decode" and path.stem != "decode_ctc_greedy":
            assert 0 < yaml.safe_load(path.read_text())["ngram_weight"] < 1


def test_all_configs_of_the_recipes_were_found() -> None:
    assert {path.stem for path in CONFIGS} >= {"blstm", "adpsgd", *LEARNERS}
    assert sorted(LEARNERS) == sorted(path.stem for path in TUNING.glob("*.yaml"))


@pytest.mark.parametrize("name", LEARNERS)
def test_algorithm_accepts_the_number_of_learners(name: str) -> None:
    config = ["--config", str(TUNING / f"{name}.yaml")]
    check.main([*config, "--nlearners", str(LEARNERS[name])])


@pytest.mark.parametrize("name", LEARNERS)
def test_model_is_that_of_the_recipe(name: str) -> None:
    recipe = yaml.safe_load((ROOT / "conf" / "blstm.yaml").read_text())
    model = ("frontend", "specaug", "encoder", "model", "ctc", "grad_clip")
    for key, value in recipe.items():
        if key.startswith(model):
            assert tuning(name)[key] == value


@pytest.mark.parametrize("name", LEARNERS)
def test_arithmetic(name: str) -> None:
    config, learners = tuning(name), LEARNERS[name]
    frames = learners * SAMPLES_OF_A_LEARNER * FRAMES_OF_A_SAMPLE
    assert (config["batch_type"], config["max_epoch"]) == ("length", 16)
    assert config["batch_bins"] == frames * AUDIO_OF_A_FRAME
    steps = HOURS * 3600 / (frames / 100)
    schedule = config["scheduler_conf"]
    assert schedule["steps_per_epoch"] == "1 epoch"
    comment = (TUNING / f"{name}.yaml").read_text()
    for stated in (
        f"{frames:,} frames",
        f"{frames / 100:,.2f} s",
        f"{steps:,.0f} step",
    ):
        assert stated in comment
    if name.startswith("train_bmuf"):
        assert config["distopt_conf"]["momentum"] == 1 - 1 / learners
        assert config["distopt_conf"]["period"] == 8
    else:
        assert frames == 8192 * FRAMES_OF_A_SAMPLE
        assert config["distopt_conf"]["per_node"] == 8
        assert schedule["warmup_steps"] == "10 epochs"


@pytest.mark.parametrize("name", LEARNERS)
def test_learning_rate(name: str) -> None:
    """Return the learning rates at the ends of epochs, from ESPnet's own scheduler."""
    args = parsed(TUNING / f"{name}.yaml")
    args.num_iters_per_epoch = 1810
    count_epochs(args, LEARNERS[name])
    assert args.scheduler_conf["steps_per_epoch"] == 1810
    found = rates(args, 1810)
    peak = args.optim_conf["lr"]
    assert max(found) == pytest.approx(peak)
    if name == "train_hadpsgd_8x8":
        assert found[0] == pytest.approx(peak / 10)
        assert found[9] == pytest.approx(peak)
        assert found[15] == pytest.approx(peak / 8, rel=1e-6)  # six times sqrt(2)


def test_choices_are_marked() -> None:
    """A setting is marked as our choice if and only if the papers do not give it."""
    for name in LEARNERS:
        lines = (TUNING / f"{name}.yaml").read_text().splitlines()
        ours = {line.split(":")[0].strip() for line in lines if "# our choice" in line}
        assert {"lr", "grad_clip", "dropout", "n_mels", "num_workers"} <= ours
        assert not {"period", "per_node", "num_layers", "distopt"} & ours
    marked = "batch_bins: 13762560  # our"
    assert marked not in (TUNING / "train_hadpsgd_8x8.yaml").read_text()
    assert marked in (TUNING / "train_bmuf_adam_64.yaml").read_text()
