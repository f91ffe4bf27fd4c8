"""The iterator that ESPnet's loop reads, and what ends an epoch."""

import argparse
import contextlib
from collections.abc import Generator, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kaldiio
import numpy as np
import pytest
import torch
import yaml
from espnet2.lm.espnet_model import ESPnetLanguageModel
from espnet2.lm.seq_rnn_lm import SequentialRNNLM
from espnet2.train.reporter import SubReporter

from espnet_distopt.bin import asr_train
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.batches import Batch
from espnet_distopt.espnet.training.epoch import Epoch, nobody_stepped
from espnet_distopt.espnet.training.options import batches_of_epoch, count_epochs
from espnet_distopt.espnet.training.saving import Position
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from espnet_distopt.recipes.commands import check
from tests.espnet.toy import arguments, write_toy_data


class Session:
    """A session that records what is asked of it."""

    def __init__(self) -> None:
        self.driver = SimpleNamespace(spent={}, members=None)
        self.events: list[Any] = []
        self.weights: list[float] = []

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        self.events.append("(")
        yield
        self.events.append(")")

    def begin_batch(self, weight: float) -> None:
        self.weights.append(weight)

    def step(self) -> None:
        self.events.append("step")

    def metrics(self) -> dict[str, float]:
        return {}

    def agree_to_stop(self) -> bool:
        return False


def recorded(
    batches: Iterable[Batch], accum_grad: int, trained: int = 0
) -> tuple[Epoch, Session]:
    """Return an epoch of these batches, and the session that records it."""
    session = Session()
    run: Any = SimpleNamespace(
        options=SimpleNamespace(accum_grad=accum_grad, distopt="bmuf"),
        progress=SimpleNamespace(samples=0, batches=0, step=lambda *_: None),
        stop_signal=None,
        session=session,
        follow=lambda: None,
    )
    reporter = SubReporter("train", 1, 0)
    epoch = Epoch(run, torch.nn.Module(), reporter, [None], [None], None)
    epoch.start, epoch.left = Position(batches=trained), batches
    return epoch, session


def test_gradients_of_all_but_a_steps_last_batch_are_accumulated() -> None:
    batches = [([f"utterance {n}"], {}) for n in range(7)]
    epoch, session = recorded(batches, accum_grad=3)
    for names, _ in epoch:
        session.events += names
    assert session.events == [
        *("(", "utterance 0", ")"),
        *("(", "utterance 1", ")"),
        "utterance 2",
        "step",
        *("(", "utterance 3", ")"),
        *("(", "utterance 4", ")"),
        "utterance 5",
        "step",
        *("(", "utterance 6", ")"),
    ]


def test_steps_are_those_of_espnets_loop_where_an_epoch_is_resumed() -> None:
    # The run before had another accum_grad, and has stopped after five batches.
    batches = [(["an utterance"], {})] * 3
    epoch, session = recorded(batches, accum_grad=2, trained=5)
    for _ in epoch:
        pass
    assert session.events == ["(", ")", "step", "(", ")"]


def test_a_batch_of_speech_weighs_as_many_as_its_utterances() -> None:
    tensors = {"speech": torch.zeros(3, 9), "text": torch.zeros(3, 2)}
    epoch, session = recorded([(["a", "b", "c"], tensors), (["d"], {})], accum_grad=1)
    assert len(list(epoch)) == len(epoch) == 2
    assert session.weights == [3, 1]


def test_a_batch_of_text_weighs_what_the_language_model_says() -> None:
    model = ESPnetLanguageModel(SequentialRNNLM(vocab_size=9, unit=4), vocab_size=9)
    text = torch.randint(1, 8, (3, 5))
    batch = {"text": text, "text_lengths": torch.tensor([5, 2, 3])}
    *_, weight = model(**batch)
    epoch, session = recorded([(["a", "b", "c"], batch)], accum_grad=1)
    assert len(list(epoch)) == 1
    assert session.weights == [int(weight)] == [13]


@pytest.mark.parametrize(
    ("learners", "stops"),
    [
        ([(True, True), (True, True)], False),
        ([(True, False), (True, True)], False),
        ([(True, False), (True, False)], True),
        # The loop of a learner without a batch has had no valid step, either.
        ([(True, False), (False, False)], True),
        ([(True, True), (False, False)], False),
        ([(False, False), (False, False)], False),
    ],
)
def test_a_training_ends_once_no_learner_has_a_valid_step(
    learners: list[tuple[bool, bool]], stops: bool
) -> None:
    """Gradients that are not finite must not go on for ever where data is short."""
    had = sum(trained for trained, _ in learners) / len(learners)
    valid = sum(trained and ok for trained, ok in learners) / len(learners)
    for trained, ok in learners:
        asked: list[float] = []

        def mean(number: float, asked: list[float] = asked) -> float:
            asked.append(number)
            return (had, valid)[len(asked) - 1]

        assert nobody_stepped(mean, trained, ok) == stops
        assert asked == [float(trained), float(trained and ok)][: len(asked)]
        assert len(asked) == (2 if had else 1)


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
    assert batches_of_epoch(args, learners=1) == 13
    file = shapes.parent / "utt2category"
    file.write_text("".join(f"u{n:03d} c{n % 7}\n" for n in range(100)))
    assert batches_of_epoch(args, learners=1) == 14


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
        (["--iterator_type", "task"], "sequence .chunk in a hybrid"),
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
    schedule = ["--scheduler", "warmupsteplr"]
    for conf in ("warmup_steps=0.5 epochs", "steps_per_epoch=1 epoch"):
        schedule += ["--scheduler_conf", conf]
    asr_train.main(arguments(tmp_path, tmp_path / "exp", *schedule))
    written = yaml.safe_load((tmp_path / "exp" / "config.yaml").read_text())
    assert written["scheduler_conf"] == {"warmup_steps": 3, "steps_per_epoch": 6}
    checkpoint = torch.load(tmp_path / "exp" / "checkpoint.pth", weights_only=False)
    assert checkpoint["schedulers"][0]["last_epoch"] == 2 * 6


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("lacks 0", "utterance 'nobody' is in a file of shapes, and not in "),
        ("lacks 1", "utterance 'nobody' is in a file of shapes, and not in "),
        ("cut off 0", "error: utterance 'spk-train-023' of "),
        ("cut off 1", "error: utterance 'spk-train-023' of "),
        ("stereo 0", "is an array of shape (4800, 2), and '"),
        ("stereo 1", "of its batch one of ("),
        ("no tokens", "tokens.txt: no tokens: make the list again"),
        ("accum_grad", "has only 6 on each learner: lower accum_grad"),
    ],
)
def test_data_that_cannot_be_trained_on_are_told_in_a_line(
    what: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_data(tmp_path)
    more = ["--num_workers", what[-1]] if what[-1].isdigit() else []
    if what.startswith("lacks"):
        shapes = tmp_path / "train" / "shape"
        shapes.write_text(shapes.read_text().replace("spk-train-000", "nobody"))
    elif what.startswith("cut off"):
        ark = tmp_path / "train" / "wav.ark"
        ark.write_bytes(ark.read_bytes()[:-20000])
        said += f"{tmp_path}/train/wav.scp cannot be read (AssertionError)"
    elif what.startswith("stereo"):
        spec = f"ark,scp:{tmp_path}/stereo.ark,{tmp_path}/stereo.scp"
        with kaldiio.WriteHelper(spec, write_function="soundfile") as ark:
            ark["spk-train-003"] = (8000, np.zeros((4800, 2), np.int16))
        wavs = tmp_path / "train" / "wav.scp"
        lines = wavs.read_text().splitlines(keepends=True)
        lines[3] = (tmp_path / "stereo.scp").read_text()
        wavs.write_text("".join(lines))
    elif what == "no tokens":
        (tmp_path / "tokens.txt").write_text("")
    else:
        more = ["--accum_grad", "7"]
    exp = tmp_path / "exp"
    with pytest.raises(SystemExit) as end:
        asr_train.main(arguments(tmp_path, exp, "--distopt", "bmuf", *more))
    assert end.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]
    assert (exp / "config.yaml").exists() == (what != "no tokens")
