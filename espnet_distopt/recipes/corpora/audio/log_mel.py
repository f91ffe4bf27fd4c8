"""Log-mel features with deltas, normalized by speaker, as hybrid systems take them.

A frame is 25 ms long and 10 ms after the one before it, as in Kaldi, whose fbank
torchaudio computes. A frame has 40 log-mel energies, their first and their second
derivatives. Each dimension has mean 0 and variance 1 over all speech of a speaker (of a
conversation side, in telephone speech).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.tables import one_field, read_table, write_table
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.kaldi.arks import ArkWriter, read_wav

MELS = 40
DIMENSIONS = 3 * MELS
"""Log-mel energies, their deltas, and the deltas of those."""
FRAME_SECONDS = 0.01
_WINDOW = 0.025
_ENERGY_FLOOR = 1.0
"""The least energy of a mel band, of samples of 16 bits. Kaldi advises this floor where
no noise is added (dither). With its other one, 1.2e-7, digital zeros would be as far
below a quiet line as this is below speech, and a few of them would make up most of a
speaker's variance."""
_COMPRESSION = 2
"""Kaldi's compression of features to a byte for each value (kSpeechFeature)."""

Features = NDArray[np.float32]


class FeatureArkWriter(ArkWriter):
    """Writes features: `ark[key] = matrix`, float32 of shape (frames, dimensions)."""

    def __setitem__(self, key: str, matrix: Features) -> None:
        self._append(key, matrix, compression_method=_COMPRESSION)


def log_mel(samples: NDArray[np.int16], rate: int) -> Features:
    """Return the features of an utterance before they are normalized.

    Zeros follow an utterance that is shorter than a window, so that each utterance of a
    test set has features, and none is missing when the set is scored.

    The samples have the shape (time,), of any length, at a rate in Hz.

    Returns:
        Shape (frames, 120), with a frame for each 10 ms.
    """
    from torchaudio.compliance.kaldi import fbank
    from torchaudio.functional import compute_deltas

    missing = max(0, math.ceil(_WINDOW * rate) - len(samples))
    wave = torch.from_numpy(np.pad(samples, (0, missing)).astype(np.float32))[None]
    energies = fbank(
        wave,
        num_mel_bins=MELS,
        sample_frequency=rate,
        frame_length=1000 * _WINDOW,
        frame_shift=1000 * FRAME_SECONDS,
        snip_edges=False,
    ).clamp(min=math.log(_ENERGY_FLOOR))
    deltas = compute_deltas(energies.T[None])
    features = torch.cat([energies.T[None], deltas, compute_deltas(deltas)], 1)
    return features[0].T.contiguous().numpy()


def normalized(utterances: Mapping[str, Features]) -> dict[str, Features]:
    """Return the features of a speaker's utterances with mean 0 and variance 1."""
    frames = sum(len(matrix) for matrix in utterances.values())
    mean = sum(matrix.sum(0, np.float64) for matrix in utterances.values()) / frames
    square = sum(
        ((matrix - mean) ** 2).sum(0, np.float64) for matrix in utterances.values()
    )
    scale = 1 / np.sqrt(np.maximum(square / frames, 1e-8))
    return {
        name: ((matrix - mean) * scale).astype(np.float32)
        for name, matrix in utterances.items()
    }


def write_features(
    dump: Path,
    out: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Write the features of a set, and return the number of its frames.

    A speaker's utterances are in memory together: 12 MB for an hour of them.

    Args:
        dump: A directory of format_data, with `wav.scp` and `utt2spk`.
        out: The directory to write: `feats.scp`, `feats.ark`, and `utt2num_frames`.
        progress: Called with the number of utterances done, and of all.

    Raises:
        InputError: A table is malformed, an utterance has no speaker, or its audio
            cannot be read.
    """
    wavs = read_table(dump / "wav.scp", str)
    speaker_of = read_table(dump / "utt2spk", one_field)
    frames: dict[str, int] = {}
    with whole_directory(out, marker="feats.scp") as new:
        with FeatureArkWriter(new / "feats.ark", named=out / "feats.ark") as ark:
            for utterances in _by_speaker(wavs, speaker_of, dump):
                for name, matrix in normalized(utterances).items():
                    ark[name] = matrix
                    frames[name] = len(matrix)
                progress(len(frames), len(wavs))
        write_table(new / "feats.scp", ark.locations)
        write_table(new / "utt2num_frames", frames)
    return sum(frames.values())


def _by_speaker(
    wavs: Mapping[str, str], speaker_of: Mapping[str, str], dump: Path
) -> Iterator[dict[str, Features]]:
    names: dict[str, list[str]] = {}
    for name in wavs:
        if name not in speaker_of:
            raise InputError(f"{dump / 'wav.scp'}: {name} is not in utt2spk")
        names.setdefault(speaker_of[name], []).append(name)
    for each in names.values():
        yield {name: _read(wavs[name]) for name in each}


def _read(location: str) -> Features:
    rate, samples = read_wav(location)
    return log_mel(samples, rate)
