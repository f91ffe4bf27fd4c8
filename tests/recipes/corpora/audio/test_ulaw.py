"""Mu-law: the values of the standard, and libsndfile's for all inputs."""

import io

import numpy as np
import soundfile

from espnet_distopt.recipes.corpora.audio.ulaw import (
    Codes,
    Samples,
    decode_ulaw,
    encode_ulaw,
)

CODES: Codes = np.arange(256, dtype=np.uint8)
SAMPLES: Samples = np.arange(-32768, 32768).astype(np.int16)


def test_libsndfile_expands_alike() -> None:
    expected, _ = soundfile.read(
        io.BytesIO(CODES.tobytes()),
        dtype="int16",
        format="RAW",
        subtype="ULAW",
        samplerate=8000,
        channels=1,
    )
    np.testing.assert_array_equal(decode_ulaw(CODES), expected)


def test_libsndfile_compresses_alike() -> None:
    coded = io.BytesIO()
    soundfile.write(coded, SAMPLES, 8000, format="RAW", subtype="ULAW")
    expected = np.frombuffer(coded.getvalue(), np.uint8)
    np.testing.assert_array_equal(encode_ulaw(SAMPLES), expected)


def test_codes_come_back() -> None:
    expected = np.where(CODES == 0x7F, 0xFF, CODES)
    np.testing.assert_array_equal(encode_ulaw(decode_ulaw(CODES)), expected)
