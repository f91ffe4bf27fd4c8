from pathlib import Path

import pytest

from espnet_distopt.bin.check import main


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
