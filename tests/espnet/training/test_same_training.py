"""A training goes on with the tokens and text with which it began, or is refused."""

import argparse
from pathlib import Path

import pytest

from espnet_distopt.bin.lm_train import main as train_lm
from espnet_distopt.errors import InputError
from espnet_distopt.espnet.training.same_training import (
    keep_to_one_source,
    refuse_other_model,
    refuse_other_tokens,
)
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
    other.write_text("".join(f"{token}\n" for token in _tokens(data)))
    DistoptASRTask.main(cmd=arguments(data, exp, "--token_list", str(other)))
    assert (exp / "2epoch.pth").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--frontend_conf", "hop_length=80"],
            "begun with frontend_conf: hop_length: 160",
        ),
        (["--frontend_conf", "win_length=200"], "win_length: its default, and the op"),
        (["--normalize", "none"], "normalize: utterance_mvn, and the options say none"),
        (
            ["--encoder_conf", "subsample=[2]"],
            "encoder_conf: subsample: its default, and",
        ),
        (["--input_size", "8"], "input_size: none, and the options say 8"),
    ],
)
def test_a_training_does_not_go_on_as_another_model(
    finished: Path, data: Path, options: list[str], message: str
) -> None:
    config = (finished / "config.yaml").read_text()
    with pytest.raises(InputError) as refused:
        DistoptASRTask.main(cmd=arguments(data, finished, *options))
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
        f"{finished}: the training there is finished, and nothing was trained now: "
        "remove the directory to train anew, or train in another one (in a recipe: "
        "--tag NAME)\n"
    )


def test_options_are_compared_as_config_yaml_has_them(tmp_path: Path) -> None:
    """A frontend that `input_size` makes needless is none there."""
    (tmp_path / "checkpoint.pth").touch()
    (tmp_path / "config.yaml").write_text(
        "input_size: 8\nfrontend: null\nfrontend_conf: {}\nline_least_rows: 0\n"
        "encoder: rnn\nencoder_conf: {subsample: [1, 2], dropout: 0}\ndecoder: null\n"
    )
    args = argparse.Namespace(
        **{"output_dir": str(tmp_path), "resume": True, "input_size": 8},
        **{"frontend": "default", "frontend_conf": {}, "line_least_rows": 0},
        **{"encoder": "rnn", "encoder_conf": {"dropout": 0.0, "subsample": (1, 2)}},
        **{"decoder": None, "decoder_conf": {"num_blocks": 2}},
    )
    choices = DistoptASRTask.class_choices_list
    refuse_other_model(args, choices, "--tag NAME")
    args.line_least_rows = 64
    with pytest.raises(InputError, match="line_least_rows: 0, and the options say 64"):
        refuse_other_model(args, choices, "--tag NAME")
    args.resume = False
    refuse_other_model(args, choices, "--tag NAME")


def _tokens(data: Path) -> list[str]:
    return (data / "tokens.txt").read_text().split()


def test_a_language_model_does_not_go_on_with_another_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_toy_text(tmp_path)
    train_lm(lm_arguments(tmp_path))
    assert (tmp_path / "lm" / "1epoch.pth").exists()
    train_lm(lm_arguments(tmp_path, "--max_epoch", "2"))
    assert (tmp_path / "lm" / "2epoch.pth").exists()
    config = (tmp_path / "lm" / "config.yaml").read_text()

    text = tmp_path / "train.txt"
    text.write_text("a one two\nb one one\n")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        train_lm(lm_arguments(tmp_path, "--max_epoch", "3"))
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path}/lm: the training there learns from other content than "
        f"{text}: remove the directory to train anew, or train in another one (in a "
        "recipe: --expdir NAME)\n"
    )
    (tmp_path / "tokens.txt").write_text("<blank>\n<unk>\ntwo\none\n<sos/eos>\n")
    with pytest.raises(SystemExit):
        train_lm(lm_arguments(tmp_path, "--max_epoch", "3"))
    assert "has other tokens than" in capsys.readouterr().err
    assert (tmp_path / "lm" / "config.yaml").read_text() == config


def test_a_training_without_a_checkpoint_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("token_list: [a]\n")
    text = tmp_path / "text"
    args = argparse.Namespace(output_dir=str(tmp_path), resume=True, token_list=["b"])
    for words in ("one", "two"):
        text.write_text(words)
        refuse_other_tokens(args, "--tag NAME")
        keep_to_one_source(args, [text], "--expdir NAME")
    (tmp_path / "checkpoint.pth").touch()
    keep_to_one_source(args, [text], "--expdir NAME")
    with pytest.raises(InputError, match="than --token_list: remove"):
        refuse_other_tokens(args, "--tag NAME")
    args.resume = False
    refuse_other_tokens(args, "--tag NAME")


def test_tokens_that_the_model_adds_are_not_others(tmp_path: Path) -> None:
    """ESPnet's transducer writes them into the config.yaml of the first training."""
    (tmp_path / "checkpoint.pth").touch()
    (tmp_path / "config.yaml").write_text("token_list: [<blank2>, <blank>, a]\n")
    args = argparse.Namespace(output_dir=str(tmp_path), resume=True)
    refuse_other_tokens(args, "--tag NAME")  # a task without tokens
    args.token_list = ["<blank>", "a"]
    args.model_conf = {"transducer_multi_blank_durations": [2]}
    refuse_other_tokens(args, "--tag NAME")
    args.model_conf = {}
    with pytest.raises(InputError, match="has other tokens"):
        refuse_other_tokens(args, "--tag NAME")
