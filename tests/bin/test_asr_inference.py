"""ESPnet's decoding, and a language model that does not belong to the recognizer."""

from pathlib import Path

import pytest

from espnet_distopt.bin import asr_inference
from tests.refusal import error_of


def test_a_language_model_of_other_tokens_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asr, lm, keys = (tmp_path / name for name in ("asr.yaml", "lm.yaml", "keys"))
    asr.write_text("token_list: [<blank>, <unk>, one, two, <sos/eos>]\n")
    lm.write_text("token_list: [<blank>, <unk>, two, one, <sos/eos>]\n")
    options = ["--output_dir", str(tmp_path / "out"), "--key_file", str(keys)]
    options += ["--data_path_and_name_and_type", f"{keys},speech,kaldi_ark"]
    options += ["--asr_train_config", str(asr), "--lm_train_config", str(lm)]
    assert error_of(asr_inference.main, options, capsys) == (
        f"{lm}: a language model over other tokens than the recognizer's, which {asr} "
        "lists: train one with that list, or decode without it"
    )


def test_the_same_tokens_go_on_to_espnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setattr(asr_inference.asr_inference, "main", given.append)
    config = tmp_path / "config.yaml"
    config.write_text("token_list: [<blank>, one]\n")
    options = ["--output_dir", str(tmp_path), "--lm_train_config", str(config)]
    options += ["--data_path_and_name_and_type", "keys,speech,kaldi_ark"]
    options += ["--asr_train_config", str(config)]
    asr_inference.main(options)
    assert given == [options]
