"""Where utterances lie in the files of their corpus."""

from pathlib import Path

from espnet_distopt.recipes.corpora.kaldi.directory import (
    ArkPlace,
    DataDir,
    FileChannel,
    Segment,
    read_places,
)

IDS = {"c1-A_1": "c1-A", "c1-B_1": "c1-B"}


def test_segments_and_channels(tmp_path: Path) -> None:
    DataDir(
        wav={"c1-A": "c1.sph", "c1-B": "c1.sph"},
        text=dict.fromkeys(IDS, "one"),
        utt2spk=IDS,
        segments={
            "c1-A_1": Segment("c1-A", 1.5, 2.0),
            "c1-B_1": Segment("c1-B", 0.25, 1.0),
        },
        channels={"c1-A": FileChannel("c1", "A"), "c1-B": FileChannel("c1", "B")},
    ).write(tmp_path / "test")
    assert read_places(tmp_path / "test") == {
        "c1-A_1": ArkPlace("c1", "A", 1.5),
        "c1-B_1": ArkPlace("c1", "B", 0.25),
    }


def test_an_utterance_can_be_a_file(tmp_path: Path) -> None:
    DataDir(wav={"a-1": "a.wav"}, text={"a-1": "one"}, utt2spk={"a-1": "a"}).write(
        tmp_path / "test"
    )
    assert read_places(tmp_path / "test") == {"a-1": ArkPlace("a-1", "A", 0.0)}
