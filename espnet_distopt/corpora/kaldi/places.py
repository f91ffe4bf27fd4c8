"""Tells where the utterances of a data directory lie in the files of the corpus."""

from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.kaldi.directory import CHANNELS, DataDir, FileChannel


@dataclass(frozen=True)
class ArkPlace:
    """The name of an utterance's file, its channel, and its start in seconds."""

    file: str
    channel: str
    start: float


def read_places(path: Path) -> dict[str, ArkPlace]:
    """Read the place of each utterance of a data directory.

    Without `segments` each utterance is a recording of its own. Without
    `reco2file_and_channel` each recording is a file with one channel, called A.

    Raises:
        InputError: The directory is bad in one of the ways that `DataDir.read` names.
    """
    data = DataDir.read(path)
    places = {}
    for utterance in data.text:
        segment = data.segments[utterance] if data.segments else None
        recording = segment.recording if segment else utterance
        if data.channels:
            source = data.channels[recording]
        else:
            source = FileChannel(recording, CHANNELS[0])
        start = segment.start if segment else 0.0
        places[utterance] = ArkPlace(source.file, source.channel, start)
    return places
