"""Where the utterances of a data directory lie in the files of their corpus."""

from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.corpora.kaldi.directory import CHANNELS, DataDir, FileChannel


@dataclass(frozen=True)
class ArkPlace:
    """The file of an utterance, by its name, its channel, and its start in seconds."""

    file: str
    channel: str
    start: float


def read_places(path: Path) -> dict[str, ArkPlace]:
    """Read the place of each utterance of a data directory.

    Without segments an utterance is a recording of its own; without
    reco2file_and_channel a recording is a file with one channel, called A.

    Raises:
        InputError: as `DataDir.read`.
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
