from pathlib import Path

import pytest

from espnet_distopt.recipes.commands.check import main
from tests.refusal import Refused


def test_the_training_configuration_goes_before_the_algorithms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, shared = tmp_path / "train.yaml", tmp_path / "bmuf.yaml"
    shared.write_text("distopt: bmuf\ndistopt_conf:\n    period: 0\n")
    options = ["--distopt_config", str(shared), "--nlearners", "2"]
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert "period" in capsys.readouterr().err
    own.write_text("distopt: bmuf\ndistopt_conf:\n    period: 4\n")
    main(["--config", str(own), *options])


def test_options_that_are_no_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "train.yaml"
    own.write_text("distopt: bmuf\ndistopt_conf: 3\n")
    with pytest.raises(SystemExit) as ended:
        main(["--config", str(own)])
    assert ended.value.code == 2
    assert "distopt_conf must be" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "criteria", "take"),
    [
        ("valid.loss.ave.pth", "[[valid, acc, max]]", "valid.acc.ave.pth"),
        ("valid.acc.best.pth", "[[valid, loss, min]]", "valid.loss.best.pth"),
        ("valid.cer.ave_3best.pth", "[[valid, acc, max]]", "valid.acc.ave_3best.pth"),
    ],
)
def test_a_model_that_the_training_would_not_write(
    model: str, criteria: str, take: str, tmp_path: Path, refused: Refused
) -> None:
    own = tmp_path / "train.yaml"
    own.write_text(f"best_model_criterion: {criteria}\n")
    said = refused(main, ["--config", str(own), "--model", model])
    assert f"will not write the model {model}" in said
    assert said.endswith(f"take {take}")
    for good in (take, "latest.pth", "7epoch.pth", "gmm.npz"):
        main(["--config", str(own), "--model", good])
    own.write_text("max_epoch: 3\n")
    main(["--config", str(own), "--model", "valid.acc.ave.pth"])


@pytest.mark.parametrize("program", ["bin.asr_train", "recipes.commands.hybrid_train"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "--max_epochs 3",
            "--train_args: unrecognized arguments: --max_epochs 3; did you mean",
        ),
        ("--max_epoch x", "--train_args: argument --max_epoch: invalid int value: 'x'"),
        ("--optim foo", "--train_args: argument --optim: invalid choice: 'foo'"),
        (
            "--optim_conf lrr=0.1",
            "optim_conf has lrr, which optim: adadelta does not take; did you mean lr?",
        ),
        (
            "--encoder_conf hiden_size=3",
            "encoder_conf has hiden_size, which encoder: rnn does not take; did you "
            "mean hidden_size?",
        ),
        ("--scheduler warmuplr --scheduler_conf warmup=3", "scheduler_conf has warmup"),
        ("--model_conf ctc_weigt=1", "model_conf has ctc_weigt, which model: "),
        ("--distopt adpsgd --distopt_conf perod=4", "options of adpsgd: unknown"),
        ("--max_epoch 3 --optim_conf lr=0.1", ""),
    ],
)
def test_options_of_the_training(
    capsys: pytest.CaptureFixture[str], program: str, given: str, said: str
) -> None:
    module = f"espnet_distopt.{program}"
    words = ["--train_program", module, "--train_args", given]
    if not said:
        return main(words)
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    [*_, line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
