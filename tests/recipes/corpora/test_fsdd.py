"""Digit strings: each string's audio is what its text says, and no set leaks.

Most tests run on recordings made here: a constant, whose length tells digit, speaker
and index, so that the strings' audio can be read back exactly. FSDD=/path adds a test
on real ones.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.preparing import prepare_fsdd_command as main
from espnet_distopt.recipes.corpora import fsdd
from espnet_distopt.recipes.corpora.fsdd import (
    SPEAKERS,
    WORDS,
    DigitSet,
    Summary,
    Take,
    join,
    prepare,
)
from espnet_distopt.recipes.corpora.kaldi.arks import Samples, read_wav
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir
from tests.recipes.contents import contents
from tests.refusal import Refused

SETS = (
    DigitSet(name="train", strings=100, indices=range(2, 4)),
    DigitSet(name="dev", strings=15, indices=range(1, 2)),
    DigitSet(name="test_known", strings=15, indices=range(1)),
    DigitSet(name="test_unseen", strings=20, indices=range(4), unseen=True),
)
INDICES = range(4)
Damage = Callable[[Path], object]
KNOWN = [speaker for speaker in SPEAKERS if speaker != "theo"]


def code(take: Take) -> int:
    """Return the length of a take's recording, unlike that of any other, in samples."""
    speaker = SPEAKERS.index(take.speaker)
    return 100 + (take.index * len(SPEAKERS) + speaker) * 10 + take.digit


TAKES = {
    code(take): take
    for take in (Take(*of) for of in product(range(10), SPEAKERS, INDICES))
}


def decode(samples: Samples) -> list[Take]:
    """Find the takes in a string: what is louder than any gap."""
    loud = np.concatenate([[False], np.abs(samples) > 1000, [False]])
    edges = np.flatnonzero(loud[1:] != loud[:-1])
    return [TAKES[stop - start] for start, stop in edges.reshape(-1, 2)]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdd") / "recordings"
    folder.mkdir()
    for length, take in TAKES.items():
        soundfile.write(folder / take.name, np.full(length, 8000, np.int16), 8000)
    return folder.parent


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    """Make a copy of the corpus that a test may spoil."""
    folder = tmp_path / "copy" / "recordings"
    folder.mkdir(parents=True)
    for path in (corpus / "recordings").iterdir():
        os.link(path, folder / path.name)
    return folder.parent


@pytest.fixture(scope="session")
def prepared(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("prepared") / "data"
    prepare(corpus, out, sets=SETS)
    return out


def spoken(directory: Path) -> dict[str, list[Take]]:
    wav = DataDir.read(directory).wav
    return {utt: decode(read_wav(where)[1]) for utt, where in wav.items()}


@pytest.mark.parametrize("digits", SETS, ids=lambda digits: digits.name)
def test_audio_and_text_agree(digits: DigitSet, prepared: Path) -> None:
    data = DataDir.read(prepared / digits.name)
    strings = spoken(prepared / digits.name)
    assert len(strings) == digits.strings
    for utt, takes in strings.items():
        speaker, name, number = utt.split("-")
        assert (name, len(number)) == (digits.name, 5)
        assert data.utt2spk[utt] == speaker
        assert {take.speaker for take in takes} == {speaker}
        assert {take.index for take in takes} <= set(digits.indices)
        assert data.text[utt] == " ".join(WORDS[take.digit] for take in takes)
        assert 3 <= len(takes) <= 7
    speakers = set(data.utt2spk.values())
    assert speakers == ({"theo"} if digits.unseen else set(KNOWN))
    assert {len(takes) for takes in strings.values()} == {3, 4, 5, 6, 7}


def test_recordings_are_used_equally_often(prepared: Path) -> None:
    used = Counter(t for takes in spoken(prepared / "train").values() for t in takes)
    assert len(used) == 10 * len(KNOWN) * 2
    for speaker in KNOWN:
        counts = {used[take] for take in used if take.speaker == speaker}
        assert max(counts) - min(counts) <= 1


def test_no_recording_of_a_test_is_in_training(prepared: Path) -> None:
    takes = {
        digits.name: {
            take
            for string in spoken(prepared / digits.name).values()
            for take in string
        }
        for digits in SETS
    }
    for name in ("dev", "test_known", "test_unseen"):
        assert takes["train"].isdisjoint(takes[name])
    assert takes["dev"].isdisjoint(takes["test_known"])


def test_the_seed_decides(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a directory of its own each, as wav.scp names the ark by its path.
    runs = []
    for name, seed, sets in (
        ("a", 0, SETS[1:3]),
        ("b", 0, SETS[2:0:-1]),
        ("c", 1, SETS),
    ):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        prepare(corpus, Path("data"), seed=seed, sets=sets)
        runs.append(contents(Path("data")))
    assert runs[0] == runs[1]
    assert runs[0]["dev/wav.ark"] != runs[2]["dev/wav.ark"]


def test_join_keeps_time_and_level() -> None:
    digits = [np.full(800, value, np.int16) for value in (5000, -5000, 32767)]
    joined = join(digits, np.random.default_rng(0))
    assert joined.dtype == np.int16
    # three digits of 0.1 s, four gaps of 0.05 to 0.25 s
    assert 8000 * (0.3 + 0.2) <= len(joined) <= 8000 * (0.3 + 1.0)
    loud = joined[np.abs(joined) > 1000].astype(int).reshape(3, 800)
    for digit, level in zip(loud[:2], (5000, -5000), strict=True):
        assert len(set(digit)) == 1
        assert 10 ** (-3 / 20) <= digit[0] / level <= 10 ** (3 / 20)
    assert loud[2].min() > 0  # clipped rather than wrapped
    quiet = joined[np.abs(joined) <= 1000]
    assert 3 < quiet.std() < 7


def test_other_speakers_stay_out(copy: Path, prepared: Path, tmp_path: Path) -> None:
    (copy / "recordings" / "1_zoe_0.wav").write_bytes(b"never read")
    prepare(copy, tmp_path / "data", sets=SETS)
    for name in ("train", "test_unseen"):
        texts = [
            (out / name / "text").read_bytes() for out in (tmp_path / "data", prepared)
        ]
        assert texts[0] == texts[1]


def test_summary(corpus: Path, tmp_path: Path) -> None:
    (summary,) = prepare(corpus, tmp_path, sets=SETS[:1])
    data = DataDir.read(tmp_path / "train")
    samples = sum(len(read_wav(where)[1]) for where in data.wav.values())
    words = sum(len(text.split()) for text in data.text.values())
    assert summary == Summary("train", 100, words, samples / 8000 / 3600)


def without_theo(folder: Path) -> None:
    for path in folder.glob("*_theo_*"):
        path.unlink()


def overwrite(name: str, content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)  # not through the hard link
        (folder / name).write_bytes(content)

    return damage


def at_16_khz(folder: Path) -> None:
    (folder / "3_lucas_1.wav").unlink()
    soundfile.write(folder / "3_lucas_1.wav", np.zeros(99, np.int16), 16000)


def no_samples(folder: Path) -> None:
    (folder / "3_lucas_1.wav").unlink()
    soundfile.write(folder / "3_lucas_1.wav", np.zeros(0, np.int16), 8000)


def emptied(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def removed(folder: Path) -> None:
    emptied(folder)
    folder.rmdir()


BAD_COPIES = [
    (removed, "recordings: no such directory: set FSDD=/path"),
    (removed, "https://github.com/Jakobovski/free-spoken-digit-dataset"),
    (emptied, "no recordings (*.wav)"),
    (without_theo, "no recordings of speaker theo"),
    (lambda folder: (folder / "3_lucas_1.wav").unlink(), "3_lucas_1.wav is missing"),
    (overwrite("three_lucas.wav", b""), "three_lucas.wav: expected a name as"),
    (overwrite("3_lucas_1.wav", b"noise"), "3_lucas_1.wav: not readable audio"),
    (at_16_khz, "3_lucas_1.wav: expected 8000 Hz, got 16000 Hz"),
    (no_samples, "3_lucas_1.wav: has no samples"),
]


@pytest.mark.parametrize(("damage", "message"), BAD_COPIES)
def test_bad_copy(damage: Damage, message: str, copy: Path, tmp_path: Path) -> None:
    damage(copy / "recordings")
    with pytest.raises(InputError) as error:
        prepare(copy, tmp_path / "data", sets=SETS)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data").exists()


def test_all_sets_are_replaced_or_none(corpus: Path, tmp_path: Path) -> None:
    prepare(corpus, tmp_path, sets=SETS[:1])
    before = contents(tmp_path / "train")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "thesis").touch()
    with pytest.raises(InputError, match="dev is not empty"):
        prepare(corpus, tmp_path, seed=1, sets=SETS)
    assert contents(tmp_path / "train") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "set FSDD=/path/to/free-spoken-digit-dataset"),
        (["--fsdd", "nowhere"], "nowhere/recordings: no such directory"),
        (["--fsdd", ".", "--seed", "-1"], "--seed -1: expected 0 or more"),
    ],
)
def test_bad_options_are_one_line(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FSDD", raising=False)
    assert message in refused(main, options)


def test_command(
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fsdd, "prepare", partial(prepare, sets=SETS))
    main(["--fsdd", str(corpus), "--out", str(tmp_path)])
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["set", "strings", "words", "hours"]
    assert [row[:2] for row in table[1:]] == [[s.name, str(s.strings)] for s in SETS]
    for name, _, words, _ in table[1:]:
        text = DataDir.read(tmp_path / name).text
        assert sum(len(string.split()) for string in text.values()) == int(words)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("FSDD"), reason="FSDD is not set")
def test_the_real_dataset(tmp_path: Path) -> None:
    # The sets of the recipe, all 3,000 recordings, but fewer strings.
    sets = [replace(digits, strings=50) for digits in fsdd.SETS]
    for summary in prepare(Path(os.environ["FSDD"]), tmp_path, sets=sets):
        data = DataDir.read(tmp_path / summary.name)
        lengths = [len(read_wav(where)[1]) for where in data.wav.values()]
        assert len(lengths) == 50
        # 3 digits of at least 0.14 s to 7 of at most 2.3 s, and gaps
        assert 8000 * 0.6 < min(lengths) < max(lengths) < 8000 * 19
