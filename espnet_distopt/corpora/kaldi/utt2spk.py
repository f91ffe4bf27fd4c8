"""The speakers of utterances: `utt2spk`, and `spk2utt`, the same by speaker."""

from pathlib import Path

from espnet_distopt.corpora.kaldi.tables import Table, line_of, read_table
from espnet_distopt.errors import InputError


def group_by_speaker(utt2spk: Table) -> dict[str, str]:
    """Return the sorted utterances of each speaker, joined by blanks."""
    utterances: dict[str, list[str]] = {}
    for utt in sorted(utt2spk):
        utterances.setdefault(utt2spk[utt], []).append(utt)
    return {speaker: " ".join(utts) for speaker, utts in utterances.items()}


def check_starts_with_speaker(path: Path, utt2spk: Table) -> None:
    """Check that the id of each utterance starts with the id of its speaker.

    Args:
        path: The data directory, for messages.
        utt2spk: The speaker of each utterance.

    Raises:
        InputError: One doesn't; the message names its line.
    """
    for utt, speaker in utt2spk.items():
        if not utt.startswith(speaker):
            where = line_of(path, "utt2spk", utt2spk, utt)
            raise InputError(
                f"{where}: utterance {utt} must start with its speaker, {speaker}"
            )


def check_spk2utt(path: Path, expected: Table) -> None:
    """Check that the file `path` groups the utterances as `expected`.

    Raises:
        InputError: It doesn't, or can't be read.
    """
    found = read_table(path, str)
    for number, speaker in enumerate(sorted({*found, *expected}), start=1):
        utts = found.get(speaker, "").split()
        if utts != expected.get(speaker, "").split():
            raise InputError(
                f"{path}:{number}: speaker {speaker}: expected the utterances that "
                "utt2spk gives this speaker, sorted"
            )
