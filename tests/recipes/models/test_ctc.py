"""Word times from a real ESPnet model that knows where its tones are."""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path

import numpy as np
import pytest
import torch
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.tasks.asr import ASRTask
from espnet2.utils.yaml_no_alias_safe_dump import yaml_no_alias_safe_dump
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.espnet.models.padded_rnn import pad_rnn_encoders
from espnet_distopt.files.tables import read_table, write_table
from espnet_distopt.recipes.commands import asr_inference, decoding
from espnet_distopt.recipes.commands.decoding import ctc_align_command as main
from espnet_distopt.recipes.corpora.hub5.ctm import read_ctm
from espnet_distopt.recipes.corpora.kaldi.arks import WavArkWriter, read_wav
from espnet_distopt.recipes.corpora.kaldi.directory import (
    ArkPlace,
    DataDir,
    FileChannel,
    Segment,
)
from espnet_distopt.recipes.corpora.kaldi.tokens import make_tokens
from espnet_distopt.recipes.hmm.ngram import estimate, write_arpa
from espnet_distopt.recipes.models import ctc
from espnet_distopt.recipes.models.ctc import (
    CTCModel,
    align,
    spell,
    spread,
    time_words,
    token_frames,
)
from tests.espnet.toy import RNN, WORDS, arguments, conformer, write_toy_data
from tests.refusal import Refused

TONE = 0.3  # seconds from word to word
FRAME = 0.02  # seconds; a word has eight
GAP = 10.0  # seconds between the starts of two utterances of a recording


def write_model(
    directory: Path, *options: str, steps: int = 0, model: Mapping[str, str] = RNN
) -> None:
    """Write config.yaml and model.pth into a new directory under toy data."""
    root = directory.parent
    directory.mkdir()
    given = arguments(root, directory, *options, model=model)
    args = ASRTask.get_parser().parse_args(given)
    torch.manual_seed(0)
    built = ASRTask.build_model(args)
    pad_rnn_encoders(built)  # takes unsorted batches
    optimizer = torch.optim.Adam(built.parameters(), lr=0.03)
    batch, labels = _tones(root / "train") if steps else ({}, torch.empty(0))
    for _ in range(steps):
        encoded, _ = built.encode(**batch)
        scores = built.ctc.ctc_lo(encoded).transpose(1, 2)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, labels).backward()
        optimizer.step()
    (directory / "config.yaml").write_text(yaml_no_alias_safe_dump(vars(args)))
    torch.save(built.state_dict(), directory / "model.pth")


def _tones(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A batch of utterances, and the token that each frame is to have."""
    wavs = [read_wav(place)[1] / 2**15 for place in _wavs(folder).values()]
    lengths = torch.tensor([len(wav) for wav in wavs])
    speech = torch.zeros(len(wavs), int(lengths.max()))
    labels = torch.full((len(wavs), 1 + int(lengths.max()) // 160), -100)
    texts = read_table(folder / "text", str).values()
    for row, (wav, text) in enumerate(zip(wavs, texts, strict=True)):
        speech[row, : len(wav)] = torch.from_numpy(wav)
        labels[row, : 1 + len(wav) // 160] = 0
        for number, word in enumerate(text.split()):
            first = round(number * TONE / FRAME)
            labels[row, first : first + 8] = 2 + WORDS.index(word)
    return {"speech": speech, "speech_lengths": lengths}, labels


def _shorten_tones(folder: Path) -> None:
    """Let each tone end when its word does."""
    wavs = {name: read_wav(place) for name, place in _wavs(folder).items()}
    with WavArkWriter(folder / "wav.ark") as ark:
        for name, (rate, wav) in wavs.items():
            tones = wav.copy().reshape(-1, round(TONE * rate))
            tones[:, round(8 * FRAME * rate) :] //= 1000
            ark[name] = (rate, tones.ravel())
    write_table(folder / "wav.scp", ark.locations)


def _wavs(folder: Path) -> dict[str, str]:
    return read_table(folder / "wav.scp", str)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy data, a model `exp`, and `data`: its valid set as one long recording."""
    root = tmp_path_factory.mktemp("toy")
    write_toy_data(root)
    for part in ("train", "valid"):
        _shorten_tones(root / part)
    size = ["--encoder_conf", "hidden_size=8", "--encoder_conf", "output_size=8"]
    write_model(root / "exp", *size, steps=60)
    text = read_table(root / "valid" / "text", str)
    DataDir(
        wav={"spk": "x.sph"},
        text=text,
        utt2spk=dict.fromkeys(text, "spk"),
        segments={
            name: Segment("spk", GAP * number, GAP * number + 1)
            for number, name in enumerate(text)
        },
        channels={"spk": FileChannel("x", "B")},
    ).write(root / "data")
    (root / "valid" / "shape").rename(root / "valid" / "utt2num_samples")
    return root


def run(toy: Path, out: Path, *decoded: str | Path) -> None:
    options = ["--exp", toy / "exp", "--model", "model.pth", "--data", toy / "data"]
    options += ["--dump", toy / "valid", *decoded, "--out", out]
    main([str(option) for option in options])


@pytest.mark.parametrize("source", ["--text", "--tokens"])
def test_words_are_where_their_tones_are(
    toy: Path, tmp_path: Path, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(toy, tmp_path / "ctm", source, toy / "valid" / "text")
    words = read_ctm(tmp_path / "ctm")
    texts = [text.split() for text in read_table(toy / "data" / "text", str).values()]
    assert [word.word for word in words] == [word for text in texts for word in text]
    assert {(word.file, word.channel) for word in words} == {("x", "B")}
    expected = [
        GAP * utterance + TONE * number
        for utterance, text in enumerate(texts)
        for number in range(len(text))
    ]
    for word, start in zip(words, expected, strict=True):
        assert abs(word.start - start) < 2.1 * FRAME
        assert abs(word.duration - 8 * FRAME) < 3.1 * FRAME
    out = capsys.readouterr().out
    assert f"{len(words)} words of 8 utterances" in out
    assert "spread" not in out


def test_empty_and_impossible_hypotheses(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = tmp_path / "token"
    names = list(_wavs(toy / "valid"))
    tokens.write_text(
        f"{names[0]}\n{names[1]} <space>\n{names[2]} {'low ' * 40}\n{names[3]} <unk>\n"
    )
    run(toy, tmp_path / "ctm", "--tokens", tokens)
    words = read_ctm(tmp_path / "ctm")
    assert [word.word for word in words] == ["low"] * 40 + ["<unk>"]
    starts = np.array([word.start for word in words[:40]])
    assert starts[0] == pytest.approx(2 * GAP)
    assert (np.diff(starts) < 0.05).all()  # 40 words over 0.6 or 0.9 s
    assert "words spread evenly" in capsys.readouterr().out


def test_words_stay_within_the_span_of_the_reference(toy: Path) -> None:
    """A scorer looks for an utterance's words there, and nowhere else."""
    model = CTCModel(toy / "exp" / "config.yaml", toy / "exp" / "model.pth")
    wavs = _wavs(toy / "valid")
    texts = read_table(toy / "valid" / "text", str)
    name = next(name for name in texts if len(texts[name].split()) == 3)
    samples = {name: len(read_wav(wavs[name])[1])}
    decoded = {name: texts[name].split()}
    places = {name: ArkPlace("x", "B", 5.0)}
    free = align(model, wavs, decoded, places, samples).words
    span = (5.0 + TONE / 2, 5.0 + 1.9 * TONE)
    held = align(model, wavs, decoded, places, samples, {name: span}).words
    assert [word.word for word in held] == decoded[name]
    assert held[1] == free[1]
    assert free[0].start < span[0] and held[0].start == span[0]
    assert free[2].start > span[1]
    assert held[2].start + held[2].duration == pytest.approx(span[1])
    assert held[2].duration == pytest.approx(FRAME)


def test_nothing_decoded(toy: Path, tmp_path: Path) -> None:
    model = CTCModel(toy / "exp" / "config.yaml", toy / "exp" / "model.pth")
    assert align(model, {}, {"a": []}, {}, {}).words == []


def test_posteriors_are_those_of_an_utterance_alone(toy: Path) -> None:
    """Batching changes only the frames at the end, which see padding."""
    model = CTCModel(toy / "exp" / "config.yaml", toy / "exp" / "model.pth")
    wavs = _wavs(toy / "valid")
    together = dict(model.posteriors(wavs))
    assert list(together) == list(wavs)
    for name, place in wavs.items():
        alone = dict(model.posteriors({name: place}))[name]
        assert alone.shape == together[name].shape == (len(alone), 6)
        np.testing.assert_allclose(np.exp(alone).sum(1), 1, rtol=1e-5)
        difference = np.exp(alone) - np.exp(together[name])
        assert np.abs(difference[:-8]).max() < 0.05


PROJECTED = ["--encoder_conf", "use_projection=true", "--encoder_conf", "num_layers=2"]


@pytest.mark.parametrize(
    ("options", "samples"),
    [
        ([], 160),
        (["--frontend_conf", "hop_length=240"], 240),
        ([*PROJECTED, "--encoder_conf", "subsample=[2,2]"], 640),
        ([*PROJECTED, "--encoder_conf", "subsample=[3,1]"], 480),
    ],
)
def test_length_of_a_frame(
    toy: Path, tmp_path: Path, options: Sequence[str], samples: int
) -> None:
    directory = toy / f"exp{samples}"
    write_model(directory, *options)
    model = CTCModel(directory / "config.yaml", directory / "model.pth")
    assert model.samples_per_frame == samples


def test_a_model_without_ctc(toy: Path) -> None:
    options = ["--model_conf", "ctc_weight=0.0", "--decoder", "rnn"]
    write_model(toy / "attention", *options)
    with pytest.raises(InputError, match=r"config\.yaml: the model has no CTC output"):
        CTCModel(toy / "attention" / "config.yaml", toy / "attention" / "model.pth")


def _bad(name: str, content: str | bytes, file: str, message: str) -> object:
    content = content if isinstance(content, bytes) else content.encode()
    return pytest.param(file, content, message, id=name)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        _bad("unknown utterance", "spk-x low\n", "tokens", "tokens:1: spk-x is not in"),
        _bad(
            "unknown token",
            "spk-valid-000 low\nspk-valid-001 lo\n",
            "tokens",
            "tokens:2: lo is not a token of the model",
        ),
        _bad(
            "blank token",
            "spk-valid-000 <blank>\n",
            "tokens",
            "tokens:1: <blank> is not a token of the model",
        ),
        _bad(
            "not in the dump",
            "spk-valid-001 8000\n",
            "valid/utt2num_samples",
            "tokens:1: spk-valid-000 is not in",
        ),
        _bad("not a model", "x", "exp/model.pth", "model.pth: not a model of"),
        _bad("not a config", "- 1\n", "exp/config.yaml", "model.pth: not a model of"),
    ],
)
def test_bad_input(
    toy: Path, tmp_path: Path, file: str, content: bytes, message: str, refused: Refused
) -> None:
    for part in ("exp", "data", "valid"):
        (tmp_path / part).mkdir()
        for path in (toy / part).iterdir():
            (tmp_path / part / path.name).symlink_to(path)
    (tmp_path / "tokens").write_text("spk-valid-000 low\n")
    bad = tmp_path / file
    bad.unlink()
    bad.write_bytes(content)
    (tmp_path / "ctm").write_text("an earlier one")
    options = ("--tokens", tmp_path / "tokens")
    assert message in refused(run, tmp_path, tmp_path / "ctm", *options)
    assert not (tmp_path / "ctm").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.popitem(last=False), "of another model than config.yaml says: ha"),
        (lambda s: s.update(a=s["ctc.ctc_lo.bias"]), "more than the model: a"),
        (lambda s: s.update(optimizers=[]), "the state of a training, not a model"),
    ],
    ids=["less", "more", "checkpoint"],
)
def test_a_model_that_espnet_would_load_in_part(
    toy: Path,
    tmp_path: Path,
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
    refused: Refused,
) -> None:
    """ESPnet leaves random what a file lacks, and decodes without a word."""
    for part in ("exp", "valid"):
        (tmp_path / part).symlink_to(toy / part)
    saved = torch.load(toy / "exp" / "model.pth", weights_only=True)
    change(saved)
    torch.save(saved, tmp_path / "changed.pth")
    changed = str(tmp_path / "changed.pth")
    error = refused(decode, tmp_path, tmp_path / "out", "--model", changed)
    assert error.startswith(changed) and message in error
    assert not (tmp_path / "out").exists()


def decode(toy: Path, out: Path, *more: str) -> None:
    options = ["--exp", toy / "exp", "--model", "model.pth", "--data", toy / "valid"]
    decoding.ctc_inference_command([*map(str, [*options, "--out", out]), *more])


def test_best_path_finds_the_words_of_tones(toy: Path, tmp_path: Path) -> None:
    spoken = read_table(toy / "valid" / "text", str)
    decode(toy, tmp_path)
    whole = read_table(tmp_path / "text", str)
    assert whole == read_table(tmp_path / "token", str)  # The tokens are words.
    # The normalization of an utterance takes away which tone it is, if it has but one.
    mixed = {name for name, text in spoken.items() if len(set(text.split())) > 1}
    assert len(mixed) > 4 and whole.keys() == spoken.keys()
    assert all(whole[name] == spoken[name] for name in mixed)
    parts = {}
    for job in ("1", "2"):
        decode(toy, tmp_path / job, "--job", job, "--nj", "2")
        parts[job] = read_table(tmp_path / job / "text", str)
    assert parts["1"].keys().isdisjoint(parts["2"])
    assert parts["1"] | parts["2"] == whole


def test_a_decoding_that_cannot_be_written_is_refused_before_the_work(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        decode(toy, tmp_path / "file" / "out")
    streams = capsys.readouterr()
    assert f"{tmp_path}/file/out: cannot be written" in streams.err
    assert not streams.out


def with_short_ones(toy: Path, folder: Path, kind: str) -> dict[str, int]:
    """Make a model, and a set with utterances of a few samples; return the lengths."""
    folder.mkdir()
    for name in ("train", "valid", "tokens.txt"):
        (folder / name).symlink_to(toy / name)
    write_model(folder / "exp", model=RNN if kind == "rnn" else conformer())
    data, lengths = folder / "data", {"short-1": 1, "short-2": 90, "short-3": 500}
    data.mkdir()
    wavs = {name: read_wav(place) for name, place in _wavs(toy / "valid").items()}
    with WavArkWriter(data / "wav.ark") as ark:
        for name, (rate, wav) in wavs.items():
            ark[name] = (rate, wav)
            lengths[name] = len(wav)
        for name in ("short-1", "short-2", "short-3"):
            ark[name] = (8000, np.full(lengths[name], 9, np.int16))
    write_table(data / "wav.scp", ark.locations)
    write_table(data / "utt2num_samples", lengths)
    return lengths


def decode_by_espnet(folder: Path) -> None:
    options = ["--asr_train_config", folder / "exp" / "config.yaml"]
    options += ["--asr_model_file", folder / "exp" / "model.pth", "--ngpu", 0]
    options += ["--data_path_and_name_and_type"]
    options += [f"{folder / 'data' / 'wav.scp'},speech,kaldi_ark", "--beam_size", 2]
    options += ["--ctc_weight", 1.0, "--output_dir", folder / "out"]
    asr_inference.main([str(option) for option in options])


def decode_by_ctc(folder: Path) -> None:
    options = ["--exp", folder / "exp", "--model", "model.pth", "--data"]
    options += [folder / "data", "--out", folder / "out" / "1best_recog"]
    decoding.ctc_inference_command([str(option) for option in options])


@pytest.mark.parametrize("program", [decode_by_espnet, decode_by_ctc])
@pytest.mark.parametrize("kind", ["rnn", "conformer"])
def test_a_few_samples_are_decoded_to_nothing(
    program: Callable[[Path], None],
    kind: str,
    toy: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / kind
    lengths = with_short_ones(toy, folder, kind)
    program(folder)
    found = read_table(folder / "out" / "1best_recog" / "text", str)
    assert found.keys() == lengths.keys()
    assert found["short-1"] == found["short-2"] == ""
    streams = capsys.readouterr()
    assert "short-1 is decoded to nothing: 1 samples: " in streams.err
    told = re.search(
        r"(\d) utterance\(s\) decoded to nothing.* is (\S+): ", streams.out
    )
    assert told and int(told[1]) == (2 if kind == "rnn" else 3)


@pytest.mark.parametrize("program", [decode_by_espnet, decode_by_ctc])
def test_if_nothing_can_be_decoded_something_else_is_wrong(
    program: Callable[[Path], None],
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "rnn"
    with_short_ones(toy, folder, "rnn")

    def fail(*args: object, **batch: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(CTCModel, "_subsampling", lambda *args: 1)  # encodes, too
    monkeypatch.setattr(ESPnetASRModel, "encode", fail)
    with pytest.raises(SystemExit):
        program(folder)
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: none of 11 utterances could be decoded, the first ")
    assert error.endswith("RuntimeError: no such device")


def ngram_of(text: list[list[str]], path: Path) -> str:
    write_arpa(path, estimate(text, {word for words in text for word in words}, 2))
    return str(path)


def test_a_search_of_words_hears_what_the_n_gram_expects(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoken = read_table(toy / "valid" / "text", str)
    text = [line.split() for line in spoken.values()]
    likely = ngram_of([*text, ["unknowable"]], tmp_path / "likely.arpa")
    decode(toy, tmp_path / "likely", "--ngram_file", likely)
    found = read_table(tmp_path / "likely" / "text", str)
    mixed = {name for name, line in spoken.items() if len(set(line.split())) > 1}
    assert all(found[name] == spoken[name] for name in mixed)
    printed = capsys.readouterr().out
    assert f"{len(WORDS)} of {len(WORDS) + 1} words have tokens" in printed
    assert printed.endswith("8 utterances, 0 of them without a path\n")
    # An n-gram that knows a single word hears only this one, as often as it fits.
    only = ngram_of([[WORDS[0]]] * 9, tmp_path / "only.arpa")
    decode(toy, tmp_path / "only", "--ngram_file", only)
    heard = read_table(tmp_path / "only" / "token", str)
    assert {word for line in heard.values() for word in line.split()} == {WORDS[0]}


def test_utterances_without_a_path_are_counted(
    toy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(ctc, "best_path", lambda *args: None)
    ngram = ngram_of([[WORDS[0]]], tmp_path / "lm.arpa")
    decode(toy, tmp_path / "out", "--ngram_file", ngram)
    found = read_table(tmp_path / "out" / "text", str)
    assert list(found.values()) == [""] * 8
    assert capsys.readouterr().out.endswith("8 utterances, 8 of them without a path\n")


@pytest.mark.usefixtures("little_memory")
def test_a_graph_without_memory_is_not_built(
    toy: Path, tmp_path: Path, refused: Refused
) -> None:
    ngram = ngram_of([[WORDS[0]]] * 9, tmp_path / "lm.arpa")
    error = refused(decode, toy, tmp_path / "out", "--ngram_file", ngram)
    assert error.startswith("a graph of about ")


def test_subwords_of_another_training_set_are_refused(
    toy: Path, tmp_path: Path
) -> None:
    """Words that the model's own subwords spell would be left out of the search."""
    make_tokens(toy / "train" / "text", tmp_path / "tokens", "bpe", nbpe=12)
    exp, subwords = toy / "subwords", tmp_path / "tokens" / "bpe.model"
    listed = str(tmp_path / "tokens" / "tokens.txt")
    options = ["--token_type", "bpe", "--bpemodel", str(subwords)]
    write_model(exp, *options, "--token_list", listed)
    model = CTCModel(exp / "config.yaml", exp / "model.pth")
    assert model.spell(model.tokenize("high low")) == "high low"
    (tmp_path / "text").write_text("a-1 six six seven\n")
    make_tokens(tmp_path / "text", tmp_path / "tokens", "bpe", nbpe=11)
    with pytest.raises(InputError) as refused:
        CTCModel(exp / "config.yaml", exp / "model.pth")
    assert str(refused.value).startswith(
        f"{subwords}: its subwords are not the tokens of {exp / 'config.yaml'}, which"
    )


@pytest.mark.parametrize(
    ("search", "has_ngram", "message"),
    [
        ("words", False, "words needs an n-gram: pass --ngram_file"),
        ("best_path", True, "best_path uses no n-gram (--ngram_file)"),
        ("word", True, "word: expected best_path or words"),
        ("[words]", False, "['words']: expected best_path or words"),
    ],
)
def test_a_search_and_an_n_gram_that_do_not_fit_are_refused(
    toy: Path,
    tmp_path: Path,
    search: str,
    has_ngram: bool,
    message: str,
    refused: Refused,
) -> None:
    config = tmp_path / "decode.yaml"
    config.write_text(f"search: {search}\n")
    more = ["--config", str(config)]
    if has_ngram:
        more += ["--ngram_file", ngram_of([[WORDS[0]]], tmp_path / "lm.arpa")]
    error = refused(decode, toy, tmp_path / "out", *more)
    assert error == f"{config}: search: {message}"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arpa", "config", "message"),
    [
        ("", "", "expected \\data\\ first"),
        ("other", "", "the n-gram has none of the lexicon's words"),
        ("good", "beam: 0\n", "beam must be above 0, not 0"),
        ("good", "lm_weight: 1\n", "unknown option 'lm_weight'"),
    ],
)
def test_a_search_of_words_refuses(
    toy: Path, tmp_path: Path, arpa: str, config: str, message: str, refused: Refused
) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text("no n-gram\n")
    if arpa:
        ngram_of([["xyz"] if arpa == "other" else [WORDS[0]]], path)
    (tmp_path / "decode.yaml").write_text(f"search: words\n{config}")
    (tmp_path / "text").touch()
    options = ("--ngram_file", str(path), "--config", str(tmp_path / "decode.yaml"))
    assert message in refused(decode, toy, tmp_path, *options)
    assert not (tmp_path / "text").exists()


# Viterbi against brute force, and words out of tokens.


def _collapse(path: tuple[int, ...]) -> list[int]:
    return [token for token, _ in groupby(path) if token != 0]


def _best_of_all_paths(log_probs: np.ndarray, ids: list[int]) -> float:
    frames, vocabulary = log_probs.shape
    paths = product(range(vocabulary), repeat=frames)
    scores = [
        sum(float(log_probs[t, token]) for t, token in enumerate(path))
        for path in paths
        if _collapse(path) == ids
    ]
    return max(scores, default=-np.inf)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    frames=st.integers(0, 6),
    ids=st.lists(st.integers(1, 3), max_size=4),
)
def test_the_best_of_all_paths_is_found(seed: int, frames: int, ids: list[int]) -> None:
    scores = np.random.default_rng(seed).normal(size=(frames, 4)) * 3
    log_probs = (scores - np.logaddexp.reduce(scores, 1, keepdims=True)).astype("f4")
    found = token_frames(log_probs, ids)
    best = _best_of_all_paths(log_probs, ids)
    if found is None:
        assert best == -np.inf
        return
    # The path itself: each token over its frames, blanks elsewhere.
    path = np.zeros(frames, dtype=int)
    for token, (first, end) in zip(ids, found, strict=True):
        assert 0 <= first < end <= frames
        path[first:end] = token
    assert _collapse(tuple(path)) == ids
    assert sum(log_probs[range(frames), path]) == pytest.approx(best, rel=1e-5)


def _one_hot(path: list[int], vocabulary: int = 4) -> np.ndarray:
    return np.log(0.97 * np.eye(vocabulary)[path] + 0.01).astype("f4")


def test_numbers_that_are_none_give_no_path() -> None:
    assert token_frames(np.full((3, 4), np.nan, dtype="f4"), [1]) is None


@pytest.mark.parametrize(
    ("frames", "count", "expected"),
    [
        (6, 3, [(0, 2), (2, 4), (4, 6)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (3, 0, []),
    ],
)
def test_spread(frames: int, count: int, expected: list[tuple[int, int]]) -> None:
    assert spread(frames, count) == expected


@pytest.mark.parametrize(
    ("tokens", "kind", "expected"),
    [
        ("one two", "word", [("one", 0, 0), ("two", 1, 1)]),
        ("▁one", "word", [("▁one", 0, 0)]),
        ("▁on e ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁ one ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁ ▁two", "bpe", [("two", 1, 1)]),
        ("▁", "bpe", []),
        ("on e ▁two", "bpe", [("one", 0, 1), ("two", 2, 2)]),
        ("▁a <unk>", "bpe", [("a<unk>", 0, 1)]),
        ("a b <space> c", "char", [("ab", 0, 1), ("c", 3, 3)]),
        ("<space> a <space> <space> b", "char", [("a", 1, 1), ("b", 4, 4)]),
        ("", "char", []),
    ],
)
def test_spell(tokens: str, kind: str, expected: list[tuple[str, int, int]]) -> None:
    assert spell(tokens.split(), kind) == expected


def test_more_tokens_than_frames_are_spread() -> None:
    words, found = time_words(_one_hot([0, 0]), ["a", "b", "c"], [1, 2, 3], "word")
    assert not found
    assert [(word.first, word.end) for word in words] == [(0, 1), (0, 1), (1, 2)]
