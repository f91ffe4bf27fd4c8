"""The events that espeak-ng reports beside its samples: when each phoneme begins."""

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Names and values of espeak-ng's C API (speak_lib.h).
_LIST_TERMINATED, _PHONEME = 0, 7
_NAME_BYTES = 8


@dataclass(frozen=True)
class TimedPhoneme:
    """A phoneme that was spoken.

    Attributes:
        name: espeak-ng's name of it, with marks of stress; a pause begins with `_`.
        start: When it begins, in seconds from the first sample. It ends where the next
            one begins.
    """

    name: str
    start: float

    @property
    def is_pause(self) -> bool:
        """Return whether nothing is spoken."""
        return self.name.startswith("_")


class _Identity(ctypes.Union):
    _fields_ = (
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("string", ctypes.c_char * _NAME_BYTES),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),  # milliseconds
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("identity", _Identity),
    )


def phonemes_of(events: Any, sample_rate: int) -> Iterator[TimedPhoneme]:
    """Yield the phonemes of a list of events.

    Args:
        events: The address of an array of `espeak_EVENT`, as a callback gets it.
        sample_rate: The rate of the samples, in Hz.
    """
    event = ctypes.cast(events, ctypes.POINTER(_Event))
    number = 0
    while event[number].type != _LIST_TERMINATED:
        if event[number].type == _PHONEME:
            name = event[number].identity.string.decode()
            yield TimedPhoneme(name, event[number].sample / sample_rate)
        number += 1


def with_closures(
    phonemes: Sequence[TimedPhoneme], samples: NDArray[np.float32], sample_rate: int
) -> list[TimedPhoneme]:
    """Let each phoneme begin with the silence right before it, its closure.

    What follows a pause stays as it is, because its closure cannot be told from the
    pause.

    Args:
        phonemes: The phonemes as espeak-ng reports them.
        samples: What was spoken, shape (time,); 0 while nothing sounds.
        sample_rate: The rate of the samples, in Hz.
    """
    moved = list(phonemes[:1])
    for before, phoneme in pairwise(phonemes):
        if not before.is_pause:
            first, end = (round(p.start * sample_rate) for p in (before, phoneme))
            sounding = np.flatnonzero(samples[first:end])
            start = first + int(sounding[-1]) + 1 if sounding.size else first
            phoneme = replace(phoneme, start=start / sample_rate)
        moved.append(phoneme)
    return moved
