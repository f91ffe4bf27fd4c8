"""A training goes on with the tokens and text with which it began, or is refused."""

import argparse
from pathlib import Path

import pytest

from espnet_distopt.bin.lm_train import main as train_lm
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.same_training import keep_to_one_training
from espnet_distopt.espnet.training.tasks import DistoptASRTask
from tests.espnet.toy import SPECAUG, WORDS, arguments, lm_arguments, write_toy_text


def test_a_training_does_not_go_on_with_other_tokens(
    data: Path, tmp_path: Path
) -> None:
    exp, other = tmp_path / "exp", tmp_path / "tokens.txt"
    other.write_text("\n".join(["<blank>", "<unk>", *reversed(WORDS), "<sos/eos>"]))
    DistoptASRTask.main(cmd=arguments(data, exp, "--max_epoch", "1"))
    config = (exp / "config.yaml").read_text()
    with pytest.raises(InputError) as refused:
        DistoptASRTask.main(cmd=arguments(data, exp, "--token_list", str(other)))
    assert str(refused.value) == (
        f"{exp}: the training there has other tokens than {other}: remove the "
        "directory to train anew, or train in another one (in a recipe: --tag NAME)"
    )
    assert (exp / "config.yaml").read_text() == config
    # The same tokens may be in another file, and last lines may have an end or none.
    other.write_text((data / "tokens.txt").read_text() + "\n")
    DistoptASRTask.main(cmd=arguments(data, exp, "--token_list", str(other)))
    assert (exp / "2epoch.pth").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--frontend_conf hop_length=80", "begun with frontend_conf: hop_length: 160"),
        ("--frontend_conf win_length=200", "win_length: its default, and the op"),
        ("--normalize none", "normalize: utterance_mvn, and the options say none"),
        ("--encoder_conf subsample=[2]", "encoder_conf: subsample: its default, and"),
        ("--input_size 8", "input_size: none, and the options say 8"),
    ],
)
def test_a_training_does_not_go_on_as_another_model(
    finished: Path, data: Path, options: str, message: str
) -> None:
    config = (finished / "config.yaml").read_text()
    with pytest.raises(InputError) as refused:
        DistoptASRTask.main(cmd=arguments(data, finished, *options.split()))
    assert message in str(refused.value)
    assert str(refused.value).endswith("(in a recipe: --tag NAME)")
    assert (finished / "config.yaml").read_text() == config


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    exp = tmp_path_factory.mktemp("exp")
    DistoptASRTask.main(cmd=arguments(data, exp, "--max_epoch", "1"))
    return exp


def test_what_only_training_has_may_change(
    finished: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    options = ["--max_epoch", "1", "--optim_conf", "lr=0.1", "--batch_size", "8"]
    options += ["--model_conf", "lsm_weight=0.1", "--num_workers", "1"]
    for name, values in SPECAUG.items():
        options += [part for value in values.split() for part in (f"--{name}", value)]
    DistoptASRTask.main(cmd=arguments(data, finished, *options))
    # A recipe's user sees this line, as ESPnet's own warning is in the log.
    assert capsys.readouterr().out == (
        f"{finished}: the training there has begun with optim_conf: lr: 0.01, and the "
        "options say 0.1: it goes on with what its checkpoint has; to train its model "
        "by other options, begin anew from it, in another directory with --init_param\n"
        f"{finished}: the training there is finished, and nothing was trained now: "
        "a larger max_epoch goes on; another directory begins anew (in a recipe: "
        "--tag NAME)\n"
    )


def test_a_training_that_goes_on_with_other_data_says_so(
    finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may be more data on purpose."""
    options = arguments(data, finished, "--max_epoch", "1")
    more, text = tmp_path / "text", data / "train" / "text"
    more.write_text(text.read_text().replace("low", "mid"))
    for changed, lines in ((more, 2), (text, 1), (more, 2)):
        capsys.readouterr()
        now = [each.replace(f"{text},", f"{changed},") for each in options]
        DistoptASRTask.main(cmd=now)
        said = capsys.readouterr().out.splitlines()
        assert len(said) == lines and "is finished" in said[-1]
        assert lines == 1 or said[0] == (
            f"{finished}: the training there has begun with other data than {more}, "
            f"{data}/train/shape, and goes on with these"
        )


def test_a_training_that_begins_anew_notes_its_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = tmp_path / "shape"
    args = of_training(tmp_path, resume=False)
    args.train_shape_file = [str(shapes), str(tmp_path / "split.1")]
    args.train_data_path_and_name_and_type = [(str(tmp_path), "text", "text")]
    (tmp_path / "checkpoint.pth").touch()
    for length in ("1", "2"):
        shapes.write_text(f"a {length}\n")
        go_on(args)
    args.resume = True
    go_on(args)
    assert capsys.readouterr().out == ""
    shapes.write_text("a 1\n")
    go_on(args)
    said = capsys.readouterr().out
    assert said.endswith(f" other data than {shapes}, and goes on with these\n")


def of_training(tmp_path: Path, **options: object) -> argparse.Namespace:
    """Return options of a training."""
    data = {"train_data_path_and_name_and_type": None, "train_shape_file": None}
    given = {"output_dir": str(tmp_path), "resume": True, **data, **options}
    return argparse.Namespace(**given)


def begin(tmp_path: Path, **options: object) -> argparse.Namespace:
    """Begin a training with some options; return them."""
    args = of_training(tmp_path, **options)
    go_on(args)
    (tmp_path / "checkpoint.pth").touch()
    return args


def go_on(args: argparse.Namespace, *sources: Path) -> None:
    choices = DistoptASRTask.class_choices_list
    keep_to_one_training(args, choices, sources, "--tag NAME")


def test_a_model_computes_what_it_has_begun_with(tmp_path: Path) -> None:
    options = {"encoder_conf": {"subsample": (1, 2)}, "line_least_rows": 0}
    args = begin(tmp_path, encoder="rnn", decoder=None, decoder_conf={}, **options)
    go_on(args)
    args.decoder_conf = None
    go_on(args)
    args.line_least_rows = 64
    with pytest.raises(InputError, match="line_least_rows: 0, and the options say 64"):
        go_on(args)
    args.resume = False
    go_on(args)
    args.resume = True
    go_on(args)
    args.encoder_conf = {"subsample": (1, 2), "bidirectional": False}
    with pytest.raises(
        InputError, match="conf: bidirectional: its default, and the options say False"
    ):
        go_on(args)


def test_what_changes_nothing_in_decoding_is_of_no_matter(tmp_path: Path) -> None:
    args = begin(
        tmp_path,
        encoder_conf={"dropout_rate": 0.1, "layers": {"stochastic_depth_rate": 0.0}},
        normalize_conf={"stats_file": "exp/stats/train/feats_stats.npz"},
    )
    args.encoder_conf = {"dropout_rate": 0.2, "layers": {"use_flash_attn": True}}
    args.normalize_conf = {"stats_file": "/moved/stats/train/feats_stats.npz"}
    go_on(args)


def test_a_training_of_stock_espnet_gets_its_note_when_it_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "checkpoint.pth").touch()
    args = begin(tmp_path, frontend="default", frontend_conf={"hop_length": 80})
    args.frontend_conf = {"hop_length": 160}
    with pytest.raises(InputError, match="hop_length: 80, and the options say 160"):
        go_on(args)


def test_a_language_model_does_not_go_on_with_another_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_text(tmp_path)
    train_lm(lm_arguments(tmp_path))
    assert (tmp_path / "lm" / "1epoch.pth").exists()
    train_lm(lm_arguments(tmp_path, "--max_epoch", "2"))
    assert (tmp_path / "lm" / "2epoch.pth").exists()
    config = (tmp_path / "lm" / "config.yaml").read_text()

    text, longer = tmp_path / "train.txt", lm_arguments(tmp_path, "--max_epoch", "3")
    text.write_text("a one two\nb one one\n")
    with pytest.raises(SystemExit, match=r"^2$"):
        train_lm(longer)
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {tmp_path}/lm: the training there learns from other content than "
        f"{text}: remove the directory to train anew, or train in another one (in a "
        "recipe: --expdir NAME)"
    )
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\ntwo\none\n<sos/eos>\n")
    with pytest.raises(SystemExit):
        train_lm(longer)
    assert "has other tokens than" in capsys.readouterr().err
    assert (tmp_path / "lm" / "config.yaml").read_text() == config


def test_a_training_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    text = tmp_path / "text"
    args = of_training(tmp_path)
    for words in ("one", "two"):
        text.write_text(words)
        args.token_list = [words]
        go_on(args, text)
    (tmp_path / "checkpoint.pth").touch()
    go_on(args, text)
    args.token_list = ["three"]
    with pytest.raises(InputError, match="than --token_list: remove"):
        go_on(args, text)
    args.token_list = ["two"]
    text.write_text("three")
    with pytest.raises(InputError, match=f"from other content than {text}: remove"):
        go_on(args, text)
    args.resume = False
    go_on(args, text)
