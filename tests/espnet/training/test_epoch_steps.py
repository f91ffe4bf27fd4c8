"""Schedules in epochs are counted in steps from the data."""

import argparse
from pathlib import Path

import pytest
import torch
import yaml

from espnet_distopt.bin import asr_train
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.options import count_epochs, steps_of_epoch
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.recipes.commands import check
from tests.espnet.toy import arguments, write_toy_data


def options(shapes: Path, *more: str) -> argparse.Namespace:
    command = ["--output_dir", "exp", "--train_shape_file", str(shapes)]
    command += ["--scheduler_conf", "warmup_steps=2 epochs"]
    return DistoptASRTask.get_parser().parse_args([*command, *more])


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes"
    path.write_text("".join(f"u{n:03d} {100 + n}\n" for n in range(100)))
    return path


@pytest.mark.parametrize(
    ("more", "steps"),
    [
        (["--batch_type", "sorted", "--batch_size", "8"], 12),
        (["--batch_type", "sorted", "--batch_size", "8", "--drop_last_iter", "1"], 12),
        (["--batch_type", "sorted", "--batch_size", "8", "--accum_grad", "3"], 4),
        (["--batch_type", "length", "--batch_bins", "100000"], 1),
        (["--batch_type", "length", "--batch_bins", "2000"], 8),
        (["--num_iters_per_epoch", "7"], 7),
        (["--collect_stats", "true"], 1),
    ],
)
def test_steps_are_those_of_the_batches(shapes, more, steps):
    args = options(shapes, "--distopt_conf", "warmup=0.5epochs", *more)
    count_epochs(args, learners=1)
    assert args.scheduler_conf == {"warmup_steps": 2 * steps}
    assert args.distopt_conf == {"warmup": max(1, round(steps / 2))}


def test_batches_have_utterances_of_one_category(shapes: Path) -> None:
    """ESPnet divides the utterances so, if such a file lies beside the data."""
    data = f"{shapes.parent}/wav.scp,speech,sound"
    more = ["--batch_type", "folded", "--batch_size", "8", "--fold_length", "80000"]
    args = options(shapes, *more, "--train_data_path_and_name_and_type", data)
    assert steps_of_epoch(args, learners=1) == 13
    file = shapes.parent / "utt2category"
    file.write_text("".join(f"u{n:03d} c{n % 7}\n" for n in range(100)))
    assert steps_of_epoch(args, learners=1) == 14


def test_options_without_a_value_are_none(shapes: Path) -> None:
    args = options(shapes)
    args.scheduler_conf = args.distopt_conf = None  # `scheduler_conf:` in YAML
    count_epochs(args, learners=1)
    assert args.scheduler_conf == args.distopt_conf == {}


@pytest.mark.parametrize(("learners", "least"), [(1, 10), (2, 2)])
def test_the_least_batch_is_espnets(shapes, learners, least):
    """ESPnet ignores min_batch_size where several learners train, and so do we."""
    small = ["--batch_type", "length", "--batch_bins", "300"]
    args = options(shapes, *small, "--min_batch_size", "10")
    count_epochs(args, learners)
    expected = options(shapes, *small, "--min_batch_size", str(least))
    count_epochs(expected, learners=1)
    assert args.scheduler_conf == expected.scheduler_conf


def test_steps_need_no_shapes(tmp_path):
    args = options(tmp_path / "none", "--scheduler_conf", "warmup_steps=25")
    count_epochs(args, learners=1)
    assert args.scheduler_conf == {"warmup_steps": 25}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["--iterator_type", "chunk", "--num_iters_per_epoch", "3"],
            "needs all chunks in each",
        ),
        (["--iterator_type", "task"], "needs iterator_type: sequence or chunk"),
        (["--multiple_iterator", "true"], "needs iterator_type: sequence"),
        (["--batch_type", "sorted"], "needs the shapes of the training set: .*none"),
    ],
)
def test_batches_that_cannot_be_counted(tmp_path, more, message):
    with pytest.raises(InputError, match=message):
        count_epochs(options(tmp_path / "none", *more), learners=1)


def test_the_check_of_options_knows_epochs(tmp_path):
    config = tmp_path / "train.yaml"
    config.write_text("distopt: bmuf\ndistopt_conf: {warmup: 1 epoch}\n")
    check.main(["--config", str(config)])
    config.write_text("distopt: bmuf\ndistopt_conf: {warmup: 1 epic}\n")
    with pytest.raises(SystemExit):
        check.main(["--config", str(config)])


def test_a_training_writes_the_steps_it_made(tmp_path):
    """An epoch of 24 utterances in batches of 4 has as many steps as were counted."""
    write_toy_data(tmp_path)
    schedule = ["--scheduler", "warmupsteplr", "--scheduler_conf"]
    schedule += [
        "warmup_steps=0.5 epochs",
        "--scheduler_conf",
        "steps_per_epoch=1 epoch",
    ]
    asr_train.main(arguments(tmp_path, tmp_path / "exp", *schedule))
    written = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    assert written["scheduler_conf"] == {"warmup_steps": 3, "steps_per_epoch": 6}
    checkpoint = torch.load(tmp_path / "exp" / "checkpoint.pth", weights_only=False)
    assert checkpoint["schedulers"][0]["last_epoch"] == 2 * 6
