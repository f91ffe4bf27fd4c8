"""SPHERE files: spans, compressed ones, what libsndfile reads, and writing."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import (
    SphereFile,
    read_header,
    write_sphere,
)
from espnet_distopt.recipes.corpora.audio.ulaw import decode_ulaw, encode_ulaw
from tests.recipes.corpora.audio.shorten_encoder import (
    DIFF0,
    DIFF1,
    QLPC,
    ULAW_2,
    Encoder,
)
from tests.recipes.corpora.audio.sphere_files import (
    PCM_LITTLE,
    read_all,
    shortened,
    sphere,
)

RNG = np.random.default_rng(0)
STEREO: NDArray[np.int16] = RNG.integers(-9000, 9000, (300, 2)).astype(np.int16)


@pytest.mark.parametrize("channels", [1, 2])
def test_libsndfile_reads_alike(channels: int, tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    write_sphere(path, STEREO[:, :channels], 8000, database_id="a b", speaker=7)
    expected, rate = soundfile.read(path, dtype="int16", always_2d=True)
    assert rate == 8000
    assert read_all(path) == expected.T.tolist()


@pytest.mark.parametrize("subtype", ["PCM_16", "ULAW"])
@pytest.mark.parametrize("endian", ["LITTLE", "BIG"])
def test_what_libsndfile_writes(subtype: str, endian: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sph"
    soundfile.write(path, STEREO, 16000, format="NIST", subtype=subtype, endian=endian)
    expected, _ = soundfile.read(path, dtype="int16")
    header = read_header(path)
    assert (header.sample_rate, header.channels, header.samples) == (16000, 2, 300)
    assert read_all(path) == expected.T.tolist()
    with SphereFile(path) as file:
        for start, stop in ((100, 101), (7, 290), (50, 50), (0, 300)):  # in any order
            samples = file.read(start, stop, 1)
            assert samples.dtype == np.int16
            assert samples.tolist() == expected[start:stop, 1].tolist()


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


def test_shortened_pcm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coded = Encoder(order=4, commands=[DIFF0, QLPC]).encode(STEREO.T)
    path = shortened(tmp_path / "x.sph", 300, coded)
    with SphereFile(path) as file:
        reads = Reads(file._file)
        monkeypatch.setattr(file, "_file", reads)
        assert file.read(10, 20, 1).tolist() == STEREO[10:20, 1].tolist()
        assert file.read(0, 300, 0).tolist() == STEREO[:, 0].tolist()
        assert reads.count == len(coded), "decoded once"


def test_shortened_mu_law(tmp_path: Path) -> None:
    codes = encode_ulaw(STEREO // 16)
    coded = Encoder(kind=ULAW_2, means=0, commands=[DIFF1]).encode(codes.T)
    path = shortened(tmp_path / "x.sph", 300, coded, "ulaw")
    assert read_all(path) == decode_ulaw(codes).T.tolist()


@pytest.mark.parametrize(
    ("coding", "samples", "message"),
    [
        ("ulaw", 300, "expected a shorten stream of ulaw, got sample type 5"),
        ("pcm", 299, "more samples than the header says"),
    ],
)
def test_a_header_that_does_not_fit_what_shorten_wrote(
    coding: str, samples: int, message: str, tmp_path: Path
) -> None:
    coded = Encoder().encode(STEREO.T)
    path = shortened(tmp_path / "x.sph", samples, coded, coding)
    with pytest.raises(InputError, match=message) as error:
        read_all(path)
    assert str(error.value).startswith(f"{path}: ")


def test_without_numba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shortened(tmp_path / "x.sph", 300, Encoder().encode(STEREO.T))
    monkeypatch.setitem(sys.modules, "numba", None)
    module = "espnet_distopt.recipes.corpora.audio.shorten"
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(InputError, match=r"numba, .* is not installed: pip install"):
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
    write_sphere(path, STEREO[:1], 8000, database_id="SWB", call=2001)
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


# SPHERE headers: typed by hand in every variant, and damaged.

TIMIT = """
    database_id -s5 TIMIT
    database_version -s3 1.0
    utterance_id -s8 cjf0_sa1
    channel_count -i 1
    sample_count -i 3
    sample_rate -i 16000
    sample_min -i -2191
    sample_max -i 2790
    sample_n_bytes -i 2
    sample_byte_format -s2 10
    sample_sig_bits -i 16
"""
SWITCHBOARD = """
    conversation_id -s4 2001
    sample_rate -i 8000
    sample_coding -s4 ulaw
    sample_n_bytes -i 1
    sample_count -i 2
    sample_max1 -r 4015.500000
    channels_interleaved -s4 TRUE
    channel_count -i 2
"""
SPIDRE = """
    speaker_id1 -s4 1549
    recording_date -s6 920304
    data_origins -s13 swb1,1.0,4062
    channel_count -i 2
    sample_max1 -r 4015.500000
    sample_coding -s6 mu-law
    channels_interleaved -s4 TRUE
    sample_count -i 4
    sample_rate -i 8000
    sample_n_bytes -i 1
    sample_sig_bits -i 8
"""
NO_COUNT = """
    channel_count -i 2
    sample_rate -i 8000
    sample_byte_format -s2 01
"""
EMPTY = """
    channel_count -i 2
    sample_rate -i 8000
    sample_count -i 0
    sample_coding -s4 ulaw
"""


@pytest.mark.parametrize(
    ("fields", "content", "size", "rate", "expected"),
    [
        (PCM_LITTLE, b"\1\0\xff\xff\0\x80", 1024, 8000, [[1, -1, -32768]]),
        (TIMIT, b"\0\1\xff\xff\x80\0", 1024, 16000, [[1, -1, -32768]]),
        (SWITCHBOARD, b"\xff\0\xfe\x7e", 1024, 8000, [[0, 8], [-32124, -8]]),
        # all channels' samples counted together
        (SPIDRE, b"\xff\0\xfe\x7e", 1024, 8000, [[0, 8], [-32124, -8]]),
        (SWITCHBOARD, b"\xff\0\xfe\x7e", 2048, 8000, [[0, 8], [-32124, -8]]),
        (NO_COUNT, b"\1\0\2\0\3\0\4\0", 3072, 8000, [[1, 3], [2, 4]]),
        (NO_COUNT, b"\1\0\2\0\3\0\4\0", 200, 8000, [[1, 3], [2, 4]]),
        (EMPTY, b"", 1024, 8000, [[], []]),
    ],
    ids=["little", "big", "ulaw", "mu-law", "2048", "3072", "200", "empty"],
)
def test_typed_header(
    fields: str,
    content: bytes,
    size: int,
    rate: int,
    expected: list[list[int]],
    tmp_path: Path,
) -> None:
    path = sphere(tmp_path / "x.sph", fields, content, size)
    header = read_header(path)
    assert header.path == path
    assert header.sample_rate == rate
    assert header.header_bytes == size
    assert header.samples == len(expected[0])
    assert header.seconds == len(expected[0]) / rate
    assert not header.shorten
    assert read_all(path) == expected


@pytest.mark.parametrize(
    ("coding", "name", "byte_order", "sample_bytes"),
    [
        ("pcm,embedded-shorten-v2.00", "pcm", None, 2),
        ("pcm,embedded-shorten-v1.09", "pcm", None, 2),
        ("ulaw,embedded-shorten-v2.00", "ulaw", None, 1),
        ("mu-law, embedded-shorten-v2.00", "ulaw", None, 1),
        ("pcm-2", "pcm", "big", 2),
        ("PCM", "pcm", "big", 2),
        ("mulaw", "ulaw", None, 1),
    ],
)
def test_codings(
    coding: str, name: str, byte_order: str | None, sample_bytes: int, tmp_path: Path
) -> None:
    fields = f"""
        channel_count -i 1
        sample_count -i 2
        sample_rate -i 8000
        sample_byte_format -s2 10
        sample_coding -s{len(coding)} {coding}
    """
    path = sphere(tmp_path / "x.sph", fields, bytes(2 * sample_bytes))
    header = read_header(path)
    assert header.coding == name
    assert header.shorten == ("shorten" in coding)
    assert header.byte_order == byte_order
    assert header.sample_bytes == sample_bytes


def test_a_string_has_the_length_that_its_type_says(tmp_path: Path) -> None:
    fields = PCM_LITTLE.replace("-s3 pcm", "-s3 pcm and more")
    path = sphere(tmp_path / "x.sph", fields, bytes(6))
    assert read_header(path).coding == "pcm"


BAD: list[tuple[str, tuple[str, str], str]] = [
    ("magic", ("NIST_1A", "NIST_2A"), "not a SPHERE file: expected NIST_1A"),
    ("size-word", ("   1024", "   1k  "), "expected NIST_1A and the header's size"),
    ("size-large", ("   1024", "  99999"), "says it has 99999 bytes, but the file"),
    (
        "size-small",
        ("   1024", "     64"),
        "header line 5: expected `name -type value`",
    ),
    ("size-1023", ("   1024", "   1023"), "needs 6 bytes, but 7 follow the header"),
    ("no-end", ("end_head", ";nd_head"), "the header has no line end_head"),
    ("no-type", ("sample_rate -i 8000", "sample_rate 8000"), "line 5: expected `name"),
    ("type", ("sample_rate -i", "sample_rate -x"), "line 5: expected `name -type"),
    ("binary", ("sample_rate", "\0\1\2 \3\4"), "line 5: expected `name -type value`"),
    ("real-rate", ("rate -i 8000", "rate -r 8e3"), "a number of at least 1, got 8e3"),
    ("no-rate", ("sample_rate", "sample_late"), "of at least 1, got nothing"),
    ("channels-0", ("channel_count -i 1", "channel_count -i 0"), "at least 1, got 0"),
    ("channels-2", ("channel_count -i 1", "channel_count -i 2"), "sample_count 3"),
    ("twice", ("sample_sig_bits", "sample_rate"), "line 8: expected `name -type value"),
    ("count-more", ("count -i 3", "count -i 4"), "needs 8 bytes, but 6 follow"),
    ("coding", ("-s3 pcm", "-s3 mp3"), "sample_coding mp3 is not supported"),
    (
        "packed",
        ("-s3 pcm", "-s19 pcm,embedded-wavpack"),
        "sample_coding pcm,embedded-wavpac",
    ),
    ("bytes-1", ("n_bytes -i 2", "n_bytes -i 1"), "of pcm with sample_n_bytes 1: exp"),
    ("law-bytes", ("-s3 pcm", "-s4 ulaw"), "ulaw with sample_n_bytes 2: expected 1"),
    ("order", ("-s2 01", "-s2 11"), "sample_byte_format 01 or 10 in the header of"),
    ("no-order", ("sample_byte", "simple_byte"), "header of 16-bit samples"),
]


@pytest.mark.parametrize(
    ("change", "message"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD]
)
def test_bad_header(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", PCM_LITTLE, bytes(6))
    header = path.read_bytes()[:1024].decode()
    changed = header.replace(*change, 1).rstrip(" ").ljust(1024)
    assert changed != header
    path.write_bytes(changed.encode() + bytes(6))
    with pytest.raises(InputError, match=re.escape(message)) as error:
        read_header(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [0, 8, 300, 1023, 1024, 1029])
def test_truncated_file(size: int, tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", PCM_LITTLE, bytes(6))
    path.write_bytes(path.read_bytes()[:size])
    message = r"not a SPHERE|the header says"
    if size >= 1024:
        message = f"needs 6 bytes, but {size - 1024} follow the header: the file is tr"
    with pytest.raises(InputError, match=message):
        read_header(path)


@pytest.mark.parametrize(
    ("fields", "size", "message"),
    [
        (SWITCHBOARD.replace("-s4 TRUE", "-s5 FALSE"), 4, "not interleaved are not su"),
        (NO_COUNT, 7, "7 bytes follow the header, expected a mul"),
    ],
)
def test_two_channels(fields: str, size: int, message: str, tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", fields, bytes(size))
    with pytest.raises(InputError, match=message):
        read_header(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_header(tmp_path / "x.sph")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        SphereFile(tmp_path)
