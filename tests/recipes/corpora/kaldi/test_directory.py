"""Kaldi data directories: what is written is read back, what is wrong is named."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import read_table, write_table
from espnet_distopt.recipes.corpora.kaldi.directory import (
    ArkPlace,
    DataDir,
    FileChannel,
    Segment,
    read_places,
)

PLAIN = DataDir(
    wav={"ann-1": "a.wav", "ann-2": "b.ark:17", "bob-1": "c d.wav"},
    text={"ann-1": "hi there", "ann-2": "", "bob-1": "naïve"},
    utt2spk={"ann-1": "ann", "ann-2": "ann", "bob-1": "bob"},
)
CALL = DataDir(
    wav={"c1-A": "c1.sph", "c1-B": "c1.sph"},
    text={"c1-A-1": "hello", "c1-B-1": "hi", "c1-B-2": "yeah"},
    utt2spk={"c1-A-1": "c1-A", "c1-B-1": "c1-B", "c1-B-2": "c1-B"},
    segments={
        "c1-A-1": Segment("c1-A", 0.0, 1.5),
        "c1-B-1": Segment("c1-B", 1.25, 2.0),
        "c1-B-2": Segment("c1-B", 2.0, 3.125),
    },
    channels={"c1-A": FileChannel("c1", "A"), "c1-B": FileChannel("c1", "B")},
)


def test_places_of_utterances_in_the_files_of_their_corpus(tmp_path: Path) -> None:
    CALL.write(tmp_path / "call")
    assert read_places(tmp_path / "call") == {
        "c1-A-1": ArkPlace("c1", "A", 0.0),
        "c1-B-1": ArkPlace("c1", "B", 1.25),
        "c1-B-2": ArkPlace("c1", "B", 2.0),
    }
    PLAIN.write(tmp_path / "plain")
    assert read_places(tmp_path / "plain")["bob-1"] == ArkPlace("bob-1", "A", 0.0)


@pytest.mark.parametrize("data", [PLAIN, CALL])
def test_what_is_written_is_read_back(data: DataDir, tmp_path: Path) -> None:
    data.write(tmp_path / "train")
    assert DataDir.read(tmp_path / "train") == data


def test_files_look_as_kaldi_wants_them(tmp_path: Path) -> None:
    CALL.write(tmp_path / "train")
    content = {path.name: path.read_text() for path in (tmp_path / "train").iterdir()}
    assert content == {
        "wav.scp": "c1-A c1.sph\nc1-B c1.sph\n",
        "text": "c1-A-1 hello\nc1-B-1 hi\nc1-B-2 yeah\n",
        "utt2spk": "c1-A-1 c1-A\nc1-B-1 c1-B\nc1-B-2 c1-B\n",
        "spk2utt": "c1-A c1-A-1\nc1-B c1-B-1 c1-B-2\n",
        "segments": "c1-A-1 c1-A 0.000000 1.500000\n"
        "c1-B-1 c1-B 1.250000 2.000000\nc1-B-2 c1-B 2.000000 3.125000\n",
        "reco2file_and_channel": "c1-A c1 A\nc1-B c1 B\n",
    }


_ids = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=4)
_words = st.lists(_ids, max_size=3).map(" ".join)


@given(st.dictionaries(_ids, _words, min_size=1))
def test_tables_survive_and_are_sorted_by_bytes(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, str]
) -> None:
    path = tmp_path_factory.mktemp("table") / "text"
    write_table(path, table)
    assert read_table(path, str) == table
    keys = [line.split()[0] for line in path.read_bytes().splitlines()]
    assert keys == sorted(keys)


BAD_FILES = [
    ("wav.scp", None, "wav.scp: no such file"),
    ("wav.scp", "", "wav.scp: empty"),
    ("wav.scp", "c1-A c1.sph\n\nc1-B c1.sph\n", "wav.scp:2: blank line"),
    ("wav.scp", "c1-A sph2pipe c1.sph |\n", "wav.scp:1: expected a path"),
    ("wav.scp", "c1-A\nc1-B c1.sph\n", "wav.scp:1: expected 'id path'"),
    ("wav.scp", "c1-B c1.sph\nc1-A c1.sph\n", "wav.scp:2: c1-A must come before c1-B"),
    ("wav.scp", "c1-A c1.sph\n", "segments:2: utterance c1-B-1: recording c1-B is not"),
    ("text", "", "text: empty"),
    ("text", "c1-A-1 a\nc1-A-1 b\n", "text:2: c1-A-1 comes twice"),
    ("text", "c1-A-1 a\nc1-B-2 b\n", "utt2spk:2: c1-B-1 is not in"),
    ("text", b"c1-A-1 a\nc1-B-1 \xff\n", "text:2: expected UTF-8"),
    ("utt2spk", "c1-A-1 c1-A x\n", "utt2spk:1: expected 'utterance speaker'"),
    ("utt2spk", "c1-A-1\n", "utt2spk:1: expected 'utterance speaker'"),
    (
        "utt2spk",
        "c1-A-1 c1-A\nc1-B-1 c1-A\nc1-B-2 c1-B\n",
        "utt2spk:2: utterance c1-B-1 must start with its speaker, c1-A",
    ),
    ("spk2utt", None, "spk2utt: no such file"),
    ("spk2utt", "c1-A c1-A-1\nc1-B c1-B-2\n", "spk2utt:2: speaker c1-B: expected"),
    ("spk2utt", "c1-A c1-A-1\n", "spk2utt:2: speaker c1-B: expected"),
    ("segments", "c1-A-1 c1-A 0\n", "segments:1: expected 'utterance recording start"),
    ("segments", "c1-A-1 c1-A 0 one\n", "segments:1: expected 'utterance recording"),
    ("segments", "c1-A-1 c1-A 0 1\n", "text:2: c1-B-1 is not in"),
    ("reco2file_and_channel", "c1-A c1 1\n", "channel:1: expected 'recording file A'"),
    ("reco2file_and_channel", "c1-A c1 A\n", "wav.scp:2: c1-B is not in"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_file_is_named(
    name: str, content: str | bytes | None, message: str, tmp_path: Path
) -> None:
    directory = tmp_path / "train"
    CALL.write(directory)
    if content is None:
        (directory / name).unlink()
    else:
        raw = content if isinstance(content, bytes) else content.encode()
        (directory / name).write_bytes(raw)
    with pytest.raises(InputError) as error:
        DataDir.read(directory)
    assert message in str(error.value)
    assert str(error.value).startswith(str(directory))


@pytest.mark.parametrize(
    "times", ["1 1", "2 1", "-1 1", "nan 1", "0 nan", "0 inf"], ids=str.split
)
def test_impossible_times(times: str, tmp_path: Path) -> None:
    CALL.write(tmp_path / "train")
    segments = f"c1-A-1 c1-A 0 1\nc1-B-1 c1-B {times}\nc1-B-2 c1-B 2 3\n"
    (tmp_path / "train" / "segments").write_text(segments)
    with pytest.raises(InputError, match=r"segments:2: .*expected 0 <= start < end"):
        DataDir.read(tmp_path / "train")


def test_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such data directory"):
        DataDir.read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "bad",
    [
        replace(PLAIN, text={}),
        replace(PLAIN, text={**PLAIN.text, "cat-1": "extra"}),
        replace(PLAIN, text={**PLAIN.text, "ann-1": "two\nlines"}),
        replace(PLAIN, wav={"ann-1": "a.wav"}),
    ],
)
def test_nothing_is_written_of_a_bad_directory(bad: DataDir, tmp_path: Path) -> None:
    target = tmp_path / "train"
    PLAIN.write(target)
    with pytest.raises(InputError):
        bad.write(target)
    assert DataDir.read(target) == PLAIN
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_directory_replaces_all_files_of_the_old(tmp_path: Path) -> None:
    CALL.write(tmp_path / "train")
    PLAIN.write(tmp_path / "train")
    assert DataDir.read(tmp_path / "train") == PLAIN


def test_failing_to_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        PLAIN.write(tmp_path / "file" / "train")
