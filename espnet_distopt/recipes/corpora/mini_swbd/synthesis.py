"""Text to speech by the espeak-ng library of `espeakng-loader`, within the process.

The voices sound like robots. But there are many, they come with a small package, and
one core speaks about 400 short utterances a second.
"""

import _ctypes
import ctypes
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.ldc.ms98 import plain_words
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import PARTIALS

# Names of espeak-ng's C API (speak_lib.h).
_AUDIO_OUTPUT_SYNCHRONOUS = 2
_INITIALIZE_DONT_EXIT = 0x8000
_CHUNK_MS = 60
_POS_CHARACTER = 1
_CHARS_UTF8 = 1
_RATE, _PITCH, _RANGE = 1, 3, 4
_CALLBACK = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True)
class Voice:
    """How a person speaks.

    Attributes:
        name: An espeak-ng accent and variant, such as `en-us+f3`.
        rate: Words a minute, 80 to 450.
        pitch: From 0 (low) to 99 (high), relative to the variant's own pitch.
        range: The liveliness of the melody, from 0 (monotone) to 99.
    """

    name: str
    rate: int = 175
    pitch: int = 50
    range: int = 50


@dataclass(frozen=True)
class Speaker:
    """A person: their number (PIN), their first name, and their voice."""

    pin: int
    name: str
    voice: Voice


class Synthesizer:
    """A private espeak-ng, whose speech depends only on the seed and its own past.

    espeak-ng keeps its state in static variables that outlive `espeak_Terminate`, so
    the waveform of a sentence depends on everything said before in the process. Each
    synthesizer therefore loads its own copy of the library (0.7 MB, 3 ms).

    It is to be used in a `with` statement.

    Attributes:
        sample_rate: The rate of the samples that `say` returns, in Hz.
    """

    def __init__(self, seed: int = 0) -> None:
        """Load the library.

        Raises:
            InputError: `espeakng-loader` is missing or its library does not start.
        """
        try:
            import espeakng_loader
        except ImportError:
            raise InputError(
                "text to speech needs espeakng-loader: pip install espeakng-loader"
            ) from None
        self._library = _load_copy(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path()
        self.sample_rate = int(
            self._library.espeak_Initialize(
                _AUDIO_OUTPUT_SYNCHRONOUS,
                _CHUNK_MS,
                data.encode(),
                _INITIALIZE_DONT_EXIT,
            )
        )
        if self.sample_rate <= 0:
            raise InputError(
                f"espeak-ng cannot read its data in {data} (espeak-ng accepts at most "
                "about 140 characters: use a shorter path); reinstall espeakng-loader"
            )
        self._library.espeak_ng_SetRandSeed(seed)
        self._chunks: list[NDArray[np.int16]] = []
        # It is kept as an attribute because the library holds a bare pointer to it.
        self._callback = _CALLBACK(self._collect)
        self._library.espeak_SetSynthCallback(self._callback)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._library.espeak_Terminate()
        _ctypes.dlclose(self._library._handle)

    def say(self, text: str, voice: Voice) -> NDArray[np.float32]:
        """Speak a text.

        Args:
            text: Plain words, not SSML.
            voice: The voice that speaks. An unknown variant (after the plus) falls back
                to the plain accent.

        Returns:
            Mono samples in [-1, 1] at `sample_rate`, shape (time,).

        Raises:
            InputError: espeak-ng has no such accent, or the text has nothing to say.
        """
        if self._library.espeak_SetVoiceByName(voice.name.encode()) != 0:
            raise InputError(f"espeak-ng has no voice {voice.name!r}")
        for parameter, value in (
            (_RATE, voice.rate),
            (_PITCH, voice.pitch),
            (_RANGE, voice.range),
        ):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._chunks.clear()
        encoded = text.encode()
        status = self._library.espeak_Synth(
            encoded, len(encoded) + 1, 0, _POS_CHARACTER, 0, _CHARS_UTF8, None, None
        )
        if status != 0 or not self._chunks or not text.strip():
            raise InputError(f"espeak-ng says nothing for the text {text!r}")
        return np.concatenate(self._chunks).astype(np.float32) / np.float32(32768)

    def phonemes(self, text: str, accent: str) -> list[str]:
        """Return espeak-ng's names of the phonemes of a text, with marks of stress.

        Raises:
            InputError: espeak-ng has no such accent, or the text has no phonemes.
        """
        if self._library.espeak_SetVoiceByName(accent.encode()) != 0:
            raise InputError(f"espeak-ng has no voice {accent!r}")
        rest = ctypes.c_char_p(text.encode())
        found: list[str] = []
        while rest.value:  # the library moves it behind each clause
            names = self._library.espeak_TextToPhonemes(
                ctypes.byref(rest), _CHARS_UTF8, ord("_") << 8
            )
            found += names.decode().replace(" ", "_").split("_")
        if not any(found):
            raise InputError(f"espeak-ng has no phonemes for {text!r}")
        return [name for name in found if name]

    def _collect(self, samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


def _load_copy(path: str) -> ctypes.CDLL:
    """Load a copy of a shared library, so that it shares no static state."""
    with tempfile.TemporaryDirectory() as directory:
        library = ctypes.CDLL(shutil.copy(path, directory))
    library.espeak_Synth.argtypes = [
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_uint,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_uint,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    library.espeak_TextToPhonemes.argtypes = [
        ctypes.POINTER(ctypes.c_char_p),
        ctypes.c_int,
        ctypes.c_int,
    ]
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    library.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
    return library


ACCENTS = ("en-us", "en-gb-x-rp", "en")
"""The accents whose pronunciations a word gets; the others' are among these."""

SPOKEN = {plain_words(mark)[0]: letters for mark, letters in PARTIALS.items()}
"""Parts of words -> letters that make espeak-ng say them."""
_STRESS = "',%="


def pronounce(words: Iterable[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the different pronunciations of each word, in espeak-ng's phonemes.

    Raises:
        InputError: espeak-ng is not installed, or has no phonemes for a word.
    """
    lexicon: dict[str, list[tuple[str, ...]]] = {word: [] for word in sorted({*words})}
    with Synthesizer() as synthesizer:
        for accent in ACCENTS:
            for word, found in lexicon.items():
                phones = synthesizer.phonemes(SPOKEN.get(word, word), accent)
                # Stress is not a property that a short word keeps in a sentence.
                plain = tuple(filter(None, map(without_stress, phones)))
                if plain not in found:
                    found.append(plain)
    return lexicon


def without_stress(phoneme: str) -> str:
    """Return the name of a phoneme without marks of stress; "" if it is only a mark."""
    return phoneme.strip(_STRESS)
