"""ESPnet's decoding, and language models that do not belong to the recognizer."""

from pathlib import Path

import pytest

from espnet_distopt.recipes.commands import asr_inference
from espnet_distopt.recipes.corpora.kaldi.tokens import make_tokens
from espnet_distopt.recipes.hmm.ngram import estimate, write_arpa
from tests.refusal import Refused


def test_a_language_model_of_other_tokens_is_refused(
    tmp_path: Path, refused: Refused
) -> None:
    asr, lm, keys = (tmp_path / name for name in ("asr.yaml", "lm.yaml", "keys"))
    asr.write_text("token_list: [<blank>, <unk>, one, two, <sos/eos>]\n")
    lm.write_text("token_list: [<blank>, <unk>, two, one, <sos/eos>]\n")
    options = ["--output_dir", str(tmp_path / "out"), "--key_file", str(keys)]
    options += ["--data_path_and_name_and_type", f"{keys},speech,kaldi_ark"]
    options += ["--asr_train_config", str(asr), "--lm_train_config", str(lm)]
    assert refused(asr_inference.main, options) == (
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


def test_subwords_of_another_training_set_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Experiments share the file, and stage 5 makes it anew for another set."""
    given: list[object] = []
    monkeypatch.setattr(asr_inference.asr_inference, "main", given.append)
    text, tokens = tmp_path / "text", tmp_path / "tokens"
    text.write_text("a-1 one two one three\n")
    listed = make_tokens(text, tokens, "bpe", nbpe=12)
    config, model = tmp_path / "config.yaml", tokens / "bpe.model"
    config.write_text(f"token_type: bpe\nbpemodel: {model}\ntoken_list: {listed}\n")
    options = ["--output_dir", str(tmp_path), "--asr_train_config", str(config)]
    options += ["--data_path_and_name_and_type", "keys,speech,kaldi_ark"]
    asr_inference.main(options)
    assert given == [options]
    text.write_text("a-1 six six seven\n")
    make_tokens(text, tokens, "bpe", nbpe=11)
    error = refused(asr_inference.main, options)
    assert error.startswith(f"{model}: its subwords are not the tokens of {config}, wh")
    assert given == [options]


PIECES = ["\N{LOWER ONE EIGHTH BLOCK}th", "e", "se"]


def with_ngram(folder: Path, over: list[str]) -> list[str]:
    """Return the options of a recognizer of pieces, and of an n-gram."""
    ngram, config = folder / "lm.arpa", folder / "config.yaml"
    write_arpa(ngram, estimate([over[:2]], [*over, "<unk>"], 2))
    config.write_text(f"token_list: {['<blank>', '<unk>', *PIECES, '<sos/eos>']}\n")
    options = ["--output_dir", str(folder), "--ngram_file", str(ngram)]
    options += ["--data_path_and_name_and_type", "keys,speech,kaldi_ark"]
    return [*options, "--asr_train_config", str(config)]


def test_an_ngram_over_words_is_refused_for_pieces(
    tmp_path: Path, refused: Refused
) -> None:
    options = with_ngram(tmp_path, ["the", "these", "e"])
    assert refused(asr_inference.main, options) == (
        f"{tmp_path}/lm.arpa: an n-gram over other tokens than the model's, which has "
        "no 'the' and lacks 2 of its 3 words: estimate one on texts of these tokens"
    )


def test_an_ngram_over_the_tokens_goes_on_to_espnet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setattr(asr_inference.asr_inference, "main", given.append)
    options = with_ngram(tmp_path, PIECES[:2])
    asr_inference.main(options)
    # What KenLM has compiled is left to KenLM.
    (tmp_path / "lm.arpa").write_bytes(b"mmap lm http://kheafield.com/code\n\xff")
    asr_inference.main(options)
    assert given == [options] * 2
