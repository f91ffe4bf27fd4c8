"""The commands of a hybrid system, one after the other, on words made of tones."""

import shutil
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import kaldiio
import numpy as np
import pytest

from espnet_distopt.espnet.training.same_training import BEGUN
from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands import decoding, formatting, language
from espnet_distopt.recipes.commands.decoding import (
    hybrid_inference_command,
    hybrid_scores_command,
    refuse_other_labels,
)
from espnet_distopt.recipes.commands.language import gmm_train_command
from espnet_distopt.recipes.corpora.hub5.ctm import read_ctm
from espnet_distopt.recipes.corpora.kaldi.arks import WavArkWriter
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir
from espnet_distopt.recipes.models.hybrid import posteriors
from tests.refusal import Refused, error_of

LEXICON = {"lo": ("L", "O"), "hi": ("H", "I")}
HERTZ = {"L": 400, "O": 900, "H": 1800, "I": 3000}
RATE = 8000


def speak(words: list[str], rng: np.random.Generator) -> np.ndarray:
    parts = [np.zeros(1200)]
    for word in words:
        for phone in LEXICON[word]:
            time = np.arange(int(rng.integers(700, 1100))) / RATE
            parts.append(3000 * np.sin(2 * np.pi * HERTZ[phone] * time))
        parts.append(np.zeros(int(rng.integers(0, 2)) * 800))
    sound = np.concatenate([*parts, np.zeros(1200)])
    return (sound + 20 * rng.standard_normal(len(sound))).astype(np.int16)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with data, features, a lexicon, an n-gram and a GMM."""
    root, rng = tmp_path_factory.mktemp("tones"), np.random.default_rng(0)
    data, text = root / "data", {}
    data.mkdir()
    with WavArkWriter(data / "wav.ark") as ark:
        for number in range(40):
            words = rng.choice(list(LEXICON), int(rng.integers(1, 5))).tolist()
            ark[f"s-{number:02d}"] = RATE, speak(words, rng)
            text[f"s-{number:02d}"] = " ".join(words)
    files = DataDir(wav=ark.locations, text=text, utt2spk=dict.fromkeys(text, "s"))
    files.write_files(data, data)
    (root / "dictionary").write_text("lo L O\nhi H I\nhi_1 H I\nso s\n")
    at, lexicon = str(data), ["--lexicon", str(root / "lexicon.txt")]
    options = ["--text", f"{at}/text", "--dictionary", str(root / "dictionary")]
    language.make_lexicon_command([*options, "--out", lexicon[1]])
    options = ["--text", f"{at}/text", "--order", "2", "--out", str(root / "lang")]
    language.make_lang_command([*lexicon, *options])
    formatting.make_features_command(["--data", at, "--out", f"{at}/hybrid"])
    train_gmm(root, root / "gmm")
    return root


def train_gmm(root: Path, out: Path, passes: int = 6) -> None:
    """Train the GMM on the features below `root`."""
    given = ["--lang", str(root / "lang"), "--data", f"train={root}/data"]
    options = ["--passes", str(passes), "--doublings", "1"]
    gmm_train_command([*given, "--out", str(out), *options])


def test_a_lexicon_has_the_words_of_the_text(root: Path) -> None:
    assert (root / "lexicon.txt").read_text() == "hi H I\nlo L O\n"


def test_a_lexicon_leaves_out_bad_lines_of_the_dictionary(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, out = tmp_path / "dictionary", tmp_path / "lexicon.txt"
    bad.write_text("lo L O\nhi H I\nIBM 4 5\n")
    cmd = ["--text", f"{root}/data/text", "--dictionary", str(bad), "--out", str(out)]
    expected = "dictionary:3: expected a word and its phones"
    assert expected in error_of(language.make_lexicon_command, cmd, capsys)
    language.make_lexicon_command([*cmd, "--max_lost", "34"])
    assert "left out: 1 of 3 lines of the dictionary" in capsys.readouterr().out
    assert out.read_text() == (root / "lexicon.txt").read_text()


ACRONYMS = """\
us ah s
US y uw eh s
AM ey eh m
am ae m
TV t iy v iy
IBM ay b iy eh m
a ax
as ae z
"""


def test_acronyms_are_letters_and_no_words(tmp_path: Path) -> None:
    text, dictionary = tmp_path / "text", tmp_path / "dictionary"
    text.write_text("a the us am tv a\nb i b m's v c rs as f's\n")
    dictionary.write_text(ACRONYMS)
    out = tmp_path / "lexicon.txt"
    cmd = ["--text", str(text), "--dictionary", str(dictionary), "--out", str(out)]
    language.make_lexicon_command(cmd)
    assert out.read_text().splitlines() == [
        *["a ax", "a ey", "am ae m", "as ae z", "b b iy", "c s iy", "f's eh f s"],
        *["i ay", "m's eh m z", "rs aa r z", "the SPN", "tv t iy v iy", "us ah s"],
        "v v iy",
    ]


def test_features_are_normalized_by_speaker(root: Path) -> None:
    feats = kaldiio.load_scp(str(root / "data/hybrid/feats.scp"))
    every = np.concatenate([feats[name] for name in feats])
    assert every.shape[1] == 120
    assert np.abs(every.mean(0)).max() < 0.05
    assert np.abs(every.std(0) - 1).max() < 0.05


def inference(root: Path, out: Path, *more: str) -> list[str]:
    return [
        *["--gmm", str(root / "gmm"), "--lang", str(root / "lang")],
        *["--data", str(root / "data"), "--places", str(root / "data")],
        *["--out", str(out), *more],
    ]


def test_the_gmm_decodes_words_and_their_times(root: Path, tmp_path: Path) -> None:
    hybrid_inference_command(inference(root, tmp_path))
    decoded = read_table(tmp_path / "text", str)
    assert decoded == read_table(root / "data/text", str)
    words = read_ctm(tmp_path / "ctm")
    assert len(words) == sum(len(text.split()) for text in decoded.values())
    # The first word begins behind 0.15 s of silence, and a word is two tones long.
    starts = {word.file: word.start for word in reversed(words)}
    assert all(abs(start - 0.15) < 0.03 for start in starts.values())
    assert all(0.14 < word.duration < 0.32 for word in words)


def test_an_utterance_shorter_than_a_window_is_decoded_like_all_others(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    data, rng = tmp_path / "data", np.random.default_rng(1)
    data.mkdir()
    with WavArkWriter(data / "wav.ark") as ark:
        ark["s-0"] = RATE, speak(["lo", "hi"], rng)
        ark["s-1"] = RATE, np.full(RATE // 50, 99, np.int16)
    text = {"s-0": "lo hi", "s-1": "hi"}
    files = DataDir(wav=ark.locations, text=text, utt2spk=dict.fromkeys(text, "s"))
    files.write_files(data, data)
    formatting.make_features_command(["--data", str(data), "--out", f"{data}/hybrid"])
    given = ["--data", str(data), "--places", str(data)]
    cmd = inference(root, tmp_path / "out", *given)
    hybrid_inference_command(cmd)
    found = read_table(tmp_path / "out/text", str)
    assert found == {"s-0": "lo hi", "s-1": ""}

    feats = data / "hybrid/feats.scp"
    feats.write_text(feats.read_text().splitlines(keepends=True)[0])
    assert refused(hybrid_inference_command, cmd) == (
        f"{feats}: 1 of 2 utterances have no features, the first is s-1: run "
        "make_features (in a recipe: from --stage 10)"
    )


def test_words_lie_in_the_segment_of_the_reference(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = {"s-00": (0.25, 0.3)}
    monkeypatch.setattr(decoding, "reference_spans", lambda data: spans)
    hybrid_inference_command(inference(root, tmp_path, "--job", "1", "--nj", "20"))
    cut: dict[str, list[tuple[float, float]]] = {"s-00": [], "s-20": []}
    for word in read_ctm(tmp_path / "ctm"):
        cut[word.file].append((word.start, word.start + word.duration))
    assert min(start for start, _ in cut["s-00"]) >= 0.25
    assert max(end for _, end in cut["s-00"]) == pytest.approx(0.3)
    assert cut["s-20"][0][0] < 0.2 and cut["s-20"][-1][1] > 0.3


def test_only_a_network_with_the_labels_of_the_gmm_decodes(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    exp, gmm = tmp_path / "exp", tmp_path / "gmm"
    exp.mkdir()
    counts = (root / "gmm/train/counts").read_bytes()
    (exp / BEGUN).write_text(f"learned: {sha256(counts).hexdigest()}\n")
    for name in ("config.yaml", "valid.loss.ave.pth"):
        (exp / name).write_text("{}\n")
    other = inference(root, tmp_path / "out", "--exp", str(exp), "--gmm", str(gmm))
    train_gmm(root, gmm, passes=2)
    expected = (
        f"{exp}: the network there has learned other labels than those that {gmm}"
    )
    assert expected in refused(hybrid_inference_command, other)
    scores = ["--exp", str(exp), "--ali", str(gmm / "train")]
    scores += ["--data", str(root / "data"), "--out", str(tmp_path)]
    assert expected in refused(hybrid_scores_command, scores)
    # A stage 10 that runs again makes the same labels, so that training can go on.
    train_gmm(root, gmm)
    refuse_other_labels(exp, gmm / "train")


class Network:
    """A network that knows the states of the lexicon, and nothing else."""

    states: Sequence[str] = ()
    frames = 100

    def __init__(self, config: Path, model: Path) -> None:
        pass

    def scaled_likelihoods(
        self, feats: dict[str, str], counts: Path, prior_scale: float
    ) -> Iterator[tuple[str, np.ndarray]]:
        for name in feats:
            yield name, np.zeros((self.frames, 15), np.float32)


@pytest.fixture
def network(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> type[Network]:
    """Return the network that seems to be in `tmp_path / "exp"`."""
    states = (root / "lang/states.txt").read_text().split()
    monkeypatch.setattr(posteriors, "PosteriorModel", Network)
    monkeypatch.setattr(Network, "states", states)
    (tmp_path / "exp").mkdir()
    for name in ("config.yaml", "valid.loss.ave.pth"):
        (tmp_path / "exp" / name).write_text("{}\n")
    return Network


def test_a_lexicon_with_a_renamed_phone_decodes_nothing(
    root: Path, tmp_path: Path, network: type[Network], refused: Refused
) -> None:
    """It has as many states, but in another order."""
    (tmp_path / "lexicon.txt").write_text("hi Z I\nlo L O\n")
    lang, gmm, exp = tmp_path / "lang", tmp_path / "gmm", tmp_path / "exp"
    language.make_lang_command(
        [
            *["--lexicon", str(tmp_path / "lexicon.txt"), "--out", str(lang)],
            *["--text", str(root / "data/text"), "--order", "2"],
        ]
    )
    other = ["--lang", str(lang)]
    error = refused(hybrid_inference_command, inference(root, tmp_path / "out", *other))
    assert error.startswith(f"{root}/gmm/gmm.npz: the GMM has other states than the ")
    shutil.copytree(root / "gmm", gmm)
    cmd = inference(root, tmp_path / "out", "--exp", str(exp), "--gmm", str(gmm))
    network.states = [name.replace("H", "Z") for name in network.states]
    error = refused(hybrid_inference_command, cmd)
    assert error.startswith(f"{exp}: its states are not those of {gmm}/train/states.t")
    (gmm / "train/states.txt").write_text("\n".join(network.states))
    error = refused(hybrid_inference_command, cmd)
    assert error.startswith(f"{root}/lang: its states are not those of {gmm}/train/s")


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.splitlines()[-1]


def test_utterances_without_a_path_are_counted(
    root: Path,
    tmp_path: Path,
    network: type[Network],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(network, "frames", 2)  # A phone has three states.
    job = ["--exp", str(tmp_path / "exp"), "--job", "1", "--nj", "20"]
    hybrid_inference_command(inference(root, tmp_path / "out", *job))
    found = read_table(tmp_path / "out" / "text", str)
    assert found == {"s-00": "", "s-20": ""}
    assert last_line(capsys).endswith(" s, 2 of them without a path")


@pytest.mark.usefixtures("little_memory")
def test_a_graph_without_memory_is_not_built(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    error = refused(hybrid_inference_command, inference(root, tmp_path))
    assert error.startswith("a graph of about ")


def test_jobs_divide_the_utterances(root: Path, tmp_path: Path) -> None:
    hybrid_inference_command(inference(root, tmp_path, "--job", "3", "--nj", "20"))
    assert list(read_table(tmp_path / "text", str)) == ["s-02", "s-22"]


def test_wrong_options_leave_no_text(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    message = "acoustic_scale must be above 0"
    (tmp_path / "decode.yaml").write_text("acoustic_scale: 0\n")
    cmd = inference(root, tmp_path, "--config", str(tmp_path / "decode.yaml"))
    assert message in refused(hybrid_inference_command, cmd)
    assert not (tmp_path / "text").exists()


def test_commands_name_what_is_missing(
    root: Path, tmp_path: Path, refused: Refused
) -> None:
    train = ["--lang", str(root / "lang"), "--out", str(tmp_path / "gmm")]
    for option, message in (
        ("train", "expected NAME=DUMP"),
        (f"train={tmp_path}", "text: no such file"),
    ):
        assert message in refused(gmm_train_command, [*train, "--data", option])
    scores = ["--exp", str(tmp_path), "--ali", str(root / "gmm/train")]
    scores += ["--data", str(root / "data"), "--out", str(tmp_path)]
    earlier = [tmp_path / name for name in ("scores.scp", "scores.ark")]
    for file in earlier:
        file.write_text("of an earlier model\n")
    assert "config.yaml: no such file" in refused(hybrid_scores_command, scores)
    assert not any(file.exists() for file in earlier)
    (tmp_path / "file").touch()
    scores[-1] = str(tmp_path / "file")
    error = refused(hybrid_scores_command, scores)
    assert error == f"{tmp_path}/file: cannot be written: Not a directory"
