"""Training by frame cross-entropy: it learns, and stock ESPnet loads the result."""

import signal
from pathlib import Path
from typing import Any

import kaldiio
import numpy as np
import pytest
import torch
import yaml
from espnet2.tasks.asr import ASRTask
from espnet2.train.reporter import Reporter

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.trainer import DistoptTrainer
from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands.decoding import (
    hybrid_scores_command,
    refuse_other_labels,
)
from espnet_distopt.recipes.corpora.kaldi.arks import read_matrix
from espnet_distopt.recipes.hmm.alignments import Pdfs, write_alignments
from espnet_distopt.recipes.hmm.language import PhoneStates, write_states
from espnet_distopt.recipes.models.hybrid.posteriors import PosteriorModel
from espnet_distopt.recipes.models.hybrid.task import DistoptHybridTask
from tests.espnet.training import learners
from tests.espnet.training.learners import Injection
from tests.espnet.training.test_stop import SignalAt
from tests.recipes.hmm.toy import read_alignments
from tests.recipes.models.hybrid.toy import STATES, arguments, write_toy_frames
from tests.refusal import Refused


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hybrid")
    write_toy_frames(root)
    return root


@pytest.fixture(scope="module")
def trained(root: Path) -> Path:
    DistoptHybridTask.main(cmd=arguments(root, root / "exp"))
    return root / "exp"


def test_the_model_learns_the_states(root: Path, trained: Path) -> None:
    model = PosteriorModel(trained / "config.yaml", trained / "valid.loss.ave.pth")
    assert model.pdfs == len(STATES)
    feats = read_table(root / "valid/feats.scp", str)
    labels = read_alignments(root / "valid/ali.scp")
    right = []
    for name, log_posteriors in model.log_posteriors(feats):
        np.testing.assert_allclose(np.exp(log_posteriors).sum(1), 1, rtol=1e-5)
        right += (log_posteriors.argmax(1) == labels[name]).tolist()
    assert np.mean(right) > 0.9


def test_the_log_has_loss_and_accuracy_of_the_frames(trained: Path) -> None:
    reporter = Reporter()
    checkpoint = torch.load(trained / "checkpoint.pth", weights_only=False)
    reporter.load_state_dict(checkpoint["reporter"])
    assert 0.5 < reporter.get_value("valid", "acc", 2) <= 1
    assert reporter.get_value("train", "loss", 2) < reporter.get_value(
        "train", "loss", 1
    )


def test_stock_espnet_loads_the_checkpoint(root: Path, trained: Path) -> None:
    model, args = ASRTask.build_model_from_file(
        trained / "config.yaml", trained / "valid.loss.ave.pth"
    )
    assert args.model == "espnet"
    assert args.token_list == STATES.names()
    name, location = next(iter(read_table(root / "valid/feats.scp", str).items()))
    speech = torch.from_numpy(read_matrix(location))[None]
    with torch.no_grad():
        encoded, _ = model.eval().encode(speech, torch.tensor([speech.shape[1]]))
        stock = model.ctc.log_softmax(encoded)[0].numpy()
    own = PosteriorModel(trained / "config.yaml", trained / "valid.loss.ave.pth")
    [(_, ours)] = own.log_posteriors({name: location})
    np.testing.assert_allclose(ours, stock, atol=1e-5)


def test_frames_from_memory_give_the_same_model(
    root: Path, trained: Path, tmp_path: Path
) -> None:
    more = ["--frames_in_memory", "0.5", "--num_workers", "1"]
    DistoptHybridTask.main(cmd=arguments(root, tmp_path / "exp", *more))
    models = [torch.load(d / "2epoch.pth") for d in (trained, tmp_path / "exp")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_scores_for_kaldi_are_posteriors_over_priors(
    root: Path, trained: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    (data / "hybrid").mkdir(parents=True)
    (data / "hybrid/feats.scp").write_text((root / "valid/feats.scp").read_text())
    out = tmp_path / "out"
    files = ["--data", str(data), "--ali", str(root / "train"), "--out", str(out)]
    hybrid_scores_command(["--exp", str(trained), *files])
    counts = np.array((root / "train/counts").read_text().split()[1:-1], float)
    model = PosteriorModel(trained / "config.yaml", trained / "valid.loss.ave.pth")
    scores = kaldiio.load_scp(str(out / "scores.scp"))
    feats = read_table(data / "hybrid/feats.scp", str)
    for name, log_posteriors in model.log_posteriors(feats):
        expected = log_posteriors - np.log(counts / counts.sum())
        np.testing.assert_allclose(scores[name], expected, atol=1e-5)


def test_a_network_keeps_to_its_labels(tmp_path: Path) -> None:
    write_toy_frames(tmp_path)
    exp, ali = tmp_path / "exp", tmp_path / "train"
    DistoptHybridTask.main(cmd=arguments(tmp_path, exp, "--max_epoch", "1"))
    DistoptHybridTask.main(cmd=arguments(tmp_path, exp))  # goes on with the same
    config = (exp / "config.yaml").read_text()
    shifted = {key: (pdfs + 1) % 6 for key, pdfs in read_labels(ali).items()}
    for pdfs in shifted.values():
        pdfs[:3] = 0
    write_alignments(ali, ali, shifted, len(STATES))

    with pytest.raises(InputError) as refused:
        DistoptHybridTask.main(cmd=arguments(tmp_path, exp, "--max_epoch", "3"))
    assert str(refused.value) == (
        f"{exp}: the training there learns from other content than {ali}/counts: "
        "remove the directory to train anew, or train in another one (in a recipe: "
        "--tag NAME)"
    )
    assert (exp / "config.yaml").read_text() == config
    with pytest.raises(InputError, match="the network there has learned other labels"):
        refuse_other_labels(exp, ali)


def test_labels_of_other_states_are_refused(
    root: Path, trained: Path, tmp_path: Path, refused: Refused
) -> None:
    """A lexicon with a renamed phone has as many states, in another order."""
    other, ali = tmp_path / "states.txt", tmp_path / "ali"
    write_states(other, PhoneStates(("SIL", "b")))
    cmd = arguments(root, tmp_path / "exp", "--token_list", str(other))
    with pytest.raises(InputError) as caught:
        DistoptHybridTask.main(cmd=cmd)
    assert str(caught.value).startswith(
        f"{other}: its states are not those of {root}/train/states.txt: label the data"
    )
    assert [path.name for path in (tmp_path / "exp").iterdir()] == ["run.lock"]
    ali.mkdir()
    (ali / "counts").write_bytes((root / "train/counts").read_bytes())
    other.rename(ali / "states.txt")
    (tmp_path / "hybrid").mkdir()
    feats = (root / "valid/feats.scp").read_text()
    (tmp_path / "hybrid/feats.scp").write_text(feats)
    files = ["--data", str(tmp_path), "--ali", str(ali), "--out", str(tmp_path / "out")]
    error = refused(hybrid_scores_command, ["--exp", str(trained), *files])
    assert error.startswith(f"{trained}: its states are not those of {ali}/states.txt")


def read_labels(ali: Path) -> dict[str, Pdfs]:
    return read_alignments(ali / "ali.scp")


ALGORITHMS = {
    "adpsgd": (2, []),
    "hadpsgd": (4, ["--distopt_conf", "per_node=2"]),
    "bmuf": (2, ["--distopt_conf", "period=2"]),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_learners_train_it_together(root: Path, tmp_path: Path, algorithm: str) -> None:
    output = tmp_path / "exp"
    size, more = ALGORITHMS[algorithm]
    options = arguments(root, output, "--distopt", algorithm, *more)
    assert train(options, size, tmp_path / "log") == [0] * size, learners.read(
        tmp_path / "log"
    )
    ASRTask.build_model_from_file(output / "config.yaml", output / "2epoch.pth")


def test_a_schedule_in_epochs_counts_the_chunks(root: Path, tmp_path: Path) -> None:
    more = ["--scheduler", "warmuplr", "--scheduler_conf", "warmup_steps=2epochs"]
    DistoptHybridTask.main(cmd=arguments(root, tmp_path, *more, "--max_epoch", "1"))
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    frames = read_table(root / "train/utt2num_frames", int)
    chunks = sum(count // 7 for count in frames.values())
    steps = -(-chunks // 8)
    assert config["scheduler_conf"] == {"warmup_steps": 2 * steps}
    checkpoint = torch.load(tmp_path / "checkpoint.pth", weights_only=False)
    assert checkpoint["schedulers"][0]["last_epoch"] == steps


def train(
    options: list[str], size: int, log: Path, injection: Injection | None = None
) -> list[int]:
    """Train by `size` learners, and return their exit codes."""
    meeting = log.parent / "meeting"
    meeting.unlink(missing_ok=True)
    task = DistoptHybridTask
    return learners.train(options, size, meeting, log, injection, task=task)


@pytest.mark.parametrize("algorithm", ["allreduce", "bmuf_adam"])
def test_a_killed_training_ends_the_same(
    root: Path, tmp_path: Path, algorithm: str
) -> None:
    more = ["--distopt", algorithm]
    if algorithm == "bmuf_adam":
        more += ["--distopt_conf", "period=2", "--distopt_conf", "warmup=1"]
    log = tmp_path / "log"
    whole, killed = (arguments(root, tmp_path / n, *more) for n in ("whole", "killed"))
    assert train(whole, 2, log) == [0, 0], learners.read(log)
    assert train(killed, 2, log, learners.kill_at_step(11)) == [-9, -9]
    assert not (tmp_path / "killed/2epoch.pth").exists()
    assert train(killed, 2, log) == [0, 0], learners.read(log)
    assert "goes on from its own state after epoch 1" in learners.read(log)
    ended = [torch.load(tmp_path / n / "2epoch.pth") for n in ("whole", "killed")]
    assert ended[0].keys() == ended[1].keys()
    assert all(torch.equal(ended[0][name], ended[1][name]) for name in ended[0])


@pytest.mark.parametrize(("epochs", "gib"), [(1, 0), (2, 1)])
def test_stopped_in_an_epoch_a_training_with_dropout_ends_the_same(
    epochs: int, gib: int, root: Path, tmp_path: Path
) -> None:
    more = ["--distopt", "allreduce", "--max_epoch", str(epochs)]
    more += ["--frames_in_memory", str(gib)]
    more += ["--encoder_conf", "num_layers=2", "--encoder_conf", "dropout=0.5"]
    log = tmp_path / "log"
    whole, stopped = (arguments(root, tmp_path / n, *more) for n in ("whole", "part"))
    assert train(whole, 2, log) == [0, 0], learners.read(log)
    stop = SignalAt(2, 1, signal.SIGUSR1)
    assert train(stopped, 2, log, stop) == [75, 75], learners.read(log)
    assert train(stopped, 2, log) == [0, 0], learners.read(log)
    assert "goes on after step" in learners.read(log)
    assert ("are read once and held in memory" in learners.read(log)) is (gib > 0)
    name = f"{epochs}epoch.pth"
    ended = [torch.load(tmp_path / n / name) for n in ("whole", "part")]
    assert all(torch.equal(ended[0][name], ended[1][name]) for name in ended[0])


def test_attention_is_plotted_for_few_utterances(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plotted: list[set[str]] = []

    def plot(**kwargs: Any) -> None:
        plotted.append({name for names, _ in kwargs["iterator"] for name in names})

    monkeypatch.setattr(DistoptTrainer, "plot_attention", plot)
    more = ["--num_att_plot", "2", "--use_matplotlib", "true"]
    DistoptHybridTask.main(cmd=arguments(root, tmp_path, *more, "--max_epoch", "1"))
    assert plotted == [{"s-valid-00", "s-valid-01"}]


def test_what_the_task_needs(root: Path, tmp_path: Path) -> None:
    options = arguments(root, tmp_path / "exp")
    at = options.index("--input_size")
    with pytest.raises(InputError, match="input_size: expected the dimensions"):
        DistoptHybridTask.main(cmd=[*options[:at], *options[at + 2 :]])
    at = options.index("--train_shape_file")
    with pytest.raises(InputError, match="chunks need --train_shape_file"):
        DistoptHybridTask.main(cmd=[*options[:at], *options[at + 2 :]])


def test_an_encoder_that_subsamples_is_refused(root: Path, tmp_path: Path) -> None:
    subsamples = ["--encoder_conf", "use_projection=true"]
    subsamples += ["--encoder_conf", "subsample=[2]"]
    with pytest.raises(InputError, match="the encoder makes 4 frames of 7"):
        DistoptHybridTask.main(cmd=arguments(root, tmp_path / "exp", *subsamples))


def test_features_of_another_size(tmp_path: Path, trained: Path) -> None:
    from espnet_distopt.recipes.corpora.kaldi.arks import FloatArkWriter

    with FloatArkWriter(tmp_path / "x.ark") as ark:
        ark["a"] = np.zeros((5, 3), np.float32)
    model = PosteriorModel(trained / "config.yaml", trained / "valid.loss.ave.pth")
    with pytest.raises(
        InputError, match="a: features of 3 dimensions for a model of 8"
    ):
        list(model.log_posteriors(ark.locations))
