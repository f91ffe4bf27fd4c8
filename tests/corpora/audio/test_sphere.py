"""SPHERE files: spans, compressed ones, what libsndfile reads, and writing."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from espnet_distopt.corpora.audio import g711
from espnet_distopt.corpora.audio.sphere import SphereFile, read_header, write_sphere
from espnet_distopt.corpora.audio.sphere_header import format_header
from espnet_distopt.errors import InputError
from tests.corpora.audio.shorten_encoder import DIFF0, DIFF1, QLPC, ULAW_2, Encoder
from tests.corpora.audio.sphere_files import read_all, sphere

RNG = np.random.default_rng(0)
STEREO: NDArray[np.int16] = RNG.integers(-9000, 9000, (300, 2)).astype(np.int16)


FORMS: list[dict[str, Any]] = [
    {"coding": "ulaw"},
    {"coding": "alaw"},
    {"coding": "pcm"},
    {"coding": "pcm", "byte_order": "big"},
]


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_libsndfile_reads_alike(
    form: dict[str, Any], channels: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.sph"
    fields: dict[str, str | int] = {"database_id": "a b", "speaker": 7}
    write_sphere(path, STEREO[:, :channels], 8000, **form, fields=fields)
    expected, rate = soundfile.read(path, dtype="int16", always_2d=True)
    assert rate == 8000
    assert read_all(path) == expected.T.tolist()
    if form["coding"] == "pcm":
        np.testing.assert_array_equal(expected, STEREO[:, :channels])


@pytest.mark.parametrize("subtype", ["PCM_16", "ULAW", "ALAW"])
@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_what_libsndfile_writes(subtype: str, endian: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    soundfile.write(path, STEREO, 16000, format="NIST", subtype=subtype, endian=endian)
    expected, _ = soundfile.read(path, dtype="int16")
    header = read_header(path)
    assert (header.sample_rate, header.channels, header.samples) == (16000, 2, 300)
    assert read_all(path) == expected.T.tolist()


@given(span=st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted))
@pytest.mark.parametrize("form", FORMS)
def test_spans(
    form: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, span: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "spans.sph"
    write_sphere(path, STEREO, 8000, **form)
    whole = read_all(path)
    start, stop = span
    with SphereFile(path) as file:
        for channel in (1, 0):
            samples = file.read(start, stop, channel)
            assert samples.dtype == np.int16
            assert samples.tolist() == whole[channel][start:stop]


class Reads:
    """A file that counts the bytes read."""

    def __init__(self, file: Any) -> None:
        self.file, self.count = file, 0

    def seek(self, place: int) -> None:
        self.file.seek(place)

    def read(self, size: int = -1) -> bytes:
        content: bytes = self.file.read(size)
        self.count += len(content)
        return content

    def close(self) -> None:
        self.file.close()


def test_only_the_span_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.sph"
    write_sphere(path, STEREO, 8000)
    with SphereFile(path) as file:
        reads = Reads(file._file)
        monkeypatch.setattr(file, "_file", reads)
        file.read(100, 110, 1)
        assert reads.count == 10 * 2


SHORTENED = """
    channel_count -i 2
    sample_count -i 300
    sample_rate -i 8000
    sample_n_bytes -i {bytes}
    sample_coding -s{length} {coding}
    sample_checksum -i 4711
"""


def shortened(path: Path, coding: str, coded: bytes) -> Path:
    coding = f"{coding},embedded-shorten-v2.00"
    sample_bytes = 2 if coding.startswith("pcm") else 1
    fields = SHORTENED.format(bytes=sample_bytes, length=len(coding), coding=coding)
    return sphere(path, fields, coded)


def test_shortened_pcm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coded = Encoder(order=4, commands=[DIFF0, QLPC]).encode(STEREO.T)
    path = shortened(tmp_path / "x.sph", "pcm", coded)
    with SphereFile(path) as file:
        reads = Reads(file._file)
        monkeypatch.setattr(file, "_file", reads)
        assert file.read(10, 20, 1).tolist() == STEREO[10:20, 1].tolist()
        assert file.read(0, 300, 0).tolist() == STEREO[:, 0].tolist()
        assert reads.count == len(coded), "decoded once"


def test_shortened_mu_law(tmp_path: Path) -> None:
    codes = g711.encode_ulaw(STEREO // 16)
    coded = Encoder(kind=ULAW_2, means=0, commands=[DIFF1]).encode(codes.T)
    path = shortened(tmp_path / "x.sph", "ulaw", coded)
    assert read_all(path) == g711.decode_ulaw(codes).T.tolist()


@pytest.mark.parametrize(
    ("coding", "change", "message"),
    [
        ("pcm", (b"ajkg", b"ajkk"), "starts with ajkg, got b'ajkk'"),
        ("ulaw", (b"", b""), "expected a shorten stream of ulaw, got sample type 5"),
        ("alaw", (b"", b""), "expected a shorten stream of alaw, got sample type 5"),
        ("pcm", (b"-i 300", b"-i 299"), "more samples than the header says"),
        ("pcm", (b"-i 300", b"-i 301"), "fewer samples than the header says"),
        ("pcm", (b"channel_count -i 2", b"channel_count -i 1"), "has 2 channels, but"),
        ("pcm", (b"sample_count -i 300", b"; -i 3000"), "has no sample_count"),
    ],
)
def test_bad_shortened_file(
    coding: str, change: tuple[bytes, bytes], message: str, tmp_path: Path
) -> None:
    path = shortened(tmp_path / "x.sph", coding, Encoder().encode(STEREO.T))
    path.write_bytes(pad_header(path.read_bytes().replace(*change, 1), 1024))
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_all(path)
    assert str(error.value).startswith(f"{path}: ")


def pad_header(content: bytes, size: int) -> bytes:
    """Make up for a change of the header's length."""
    end = content.index(b"end_head\n") + len(b"end_head\n")
    return content[:end].ljust(size) + content[end:].lstrip(b" ")


def test_cut_off_shortened_file(tmp_path: Path) -> None:
    path = shortened(tmp_path / "x.sph", "pcm", Encoder().encode(STEREO.T))
    content = path.read_bytes()
    for size in range(1024, len(content) - 4, 97):
        path.write_bytes(content[:size])
        with pytest.raises(InputError, match=r"x\.sph: "):
            read_all(path)


@pytest.mark.parametrize(
    ("span", "channel", "message"),
    [
        ((0, 301), 0, "has no samples 0 to 301, only 300"),
        ((-1, 5), 0, "has no samples -1 to 5, only 300"),
        ((5, 4), 0, "has no samples 5 to 4"),
        ((0, 5), 2, "has no channel 3, only 2"),
        ((0, 5), -1, "has no channel 0, only 2"),
    ],
)
def test_bad_span(
    span: tuple[int, int], channel: int, message: str, tmp_path: Path
) -> None:
    write_sphere(tmp_path / "x.sph", STEREO, 8000)
    with (
        SphereFile(tmp_path / "x.sph") as file,
        pytest.raises(InputError, match=message),
    ):
        file.read(*span, channel)


def test_truncated_while_open(tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    write_sphere(path, STEREO, 8000)
    with SphereFile(path) as file:
        path.write_bytes(path.read_bytes()[:1200])
        with pytest.raises(InputError, match=r"x\.sph: became shorter"):
            file.read(0, 300, 0)


def test_written_header(tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    write_sphere(path, STEREO[:1], 8000, fields={"database_id": "SWB", "call": 2001})
    assert path.read_bytes()[:1024].rstrip(b" ").decode().splitlines() == [
        "NIST_1A",
        "   1024",
        "database_id -s3 SWB",
        "call -i 2001",
        "channel_count -i 2",
        "sample_count -i 1",
        "sample_rate -i 8000",
        "channels_interleaved -s4 TRUE",
        "sample_n_bytes -i 1",
        "sample_byte_format -s1 1",
        "sample_sig_bits -i 8",
        "sample_coding -s4 ulaw",
        "end_head",
    ]
    assert path.stat().st_size == 1026
    assert list(tmp_path.iterdir()) == [path]


def test_a_long_header_takes_more_blocks(tmp_path: Path) -> None:
    for length in (990, 991, 992, 993, 994, 995, 996, 2100):
        header = format_header({"x": "y" * length})
        used = len(header.rstrip(b" "))
        assert len(header) == -(-used // 1024) * 1024
        assert header[8:16] == b"%7d\n" % len(header)
    fields = {f"note{i}": "y" * 80 for i in range(20)}
    write_sphere(tmp_path / "x.sph", STEREO, 8000, coding="pcm", fields=fields)
    assert read_header(tmp_path / "x.sph").header_bytes == 3072
    assert read_all(tmp_path / "x.sph") == STEREO.T.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": STEREO.astype(np.float32)}, "expected 16-bit samples of shape"),
        ({"samples": STEREO[:, 0]}, "expected 16-bit samples of shape"),
        ({"samples": STEREO[:, :0]}, "expected 16-bit samples of shape"),
        ({"sample_rate": 0}, "expected a sample rate above 0, got 0"),
        ({"coding": "mp3"}, "expected coding ulaw, alaw or pcm"),
        ({"coding": "pcm", "byte_order": "middle"}, "got pcm (middle)"),
        ({"fields": {"sample_rate": 9}}, "sample_rate is not for the caller to set"),
        ({"fields": {"a b": 9}}, "'a b' can't be the name of a SPHERE field"),
        ({"fields": {"end_head": 9}}, "'end_head' can't be the name"),
        ({"fields": {"a": ""}}, "SPHERE field a: can't hold ''"),
        ({"fields": {"a": "b\nend_head"}}, "SPHERE field a: can't hold"),
        ({"fields": {"a": "é"}}, "SPHERE field a: can't hold"),
    ],
)
def test_not_written(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    path.write_bytes(b"old")
    arguments = {"samples": STEREO, "sample_rate": 8000, **change}
    with pytest.raises(InputError, match=re.escape(message)):
        write_sphere(path, **arguments)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_not_writable(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"x\.sph: cannot be written: No such"):
        write_sphere(tmp_path / "no" / "x.sph", STEREO, 8000)


def test_interrupted_writing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_sphere(tmp_path / "x.sph", STEREO, 8000)
    assert not list(tmp_path.iterdir())
