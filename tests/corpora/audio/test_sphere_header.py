"""SPHERE headers: typed by hand in every variant, and damaged."""

import re
from pathlib import Path

import pytest

from espnet_distopt.corpora.audio.sphere import SphereFile, read_header
from espnet_distopt.errors import InputError
from tests.corpora.audio.sphere_files import PCM_LITTLE, read_all, sphere

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
A_LAW = """
    ; a comment
    sample_coding -s4 alaw
    sample_byte_format -s1 1

    channel_count -i 1
    sample_rate -i 8000
    sample_count -i 2
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
        (A_LAW, b"\xd5\x2a", 2048, 8000, [[8, -32256]]),
        (NO_COUNT, b"\1\0\2\0\3\0\4\0", 3072, 8000, [[1, 3], [2, 4]]),
        (NO_COUNT, b"\1\0\2\0\3\0\4\0", 200, 8000, [[1, 3], [2, 4]]),
        (EMPTY, b"", 1024, 8000, [[], []]),
    ],
    ids=["little", "big", "ulaw", "mu-law", "alaw", "3072", "200", "empty"],
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
        ("a-law", "alaw", None, 1),
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
    ("riff", ("NIST_1A\n", "RIFFabcd"), "not a SPHERE file"),
    ("size-word", ("   1024", "   1k  "), "expected NIST_1A and the header's size"),
    ("size-large", ("   1024", "  99999"), "says it has 99999 bytes, but the file"),
    (
        "size-small",
        ("   1024", "     64"),
        "header line 5: expected `name -type value`",
    ),
    ("size-0", ("   1024", "      0"), "the header has no line end_head"),
    ("size-1023", ("   1024", "   1023"), "needs 6 bytes, but 7 follow the header"),
    ("size-1028", ("   1024", "   1028"), "needs 6 bytes, but 2 follow the header"),
    ("no-end", ("end_head", ";nd_head"), "the header has no line end_head"),
    ("no-type", ("sample_rate -i 8000", "sample_rate 8000"), "line 5: expected `name"),
    ("type", ("sample_rate -i", "sample_rate -x"), "line 5: expected `name -type"),
    ("binary", ("sample_rate", "\0\1\2 \3\4"), "line 5: expected `name -type value`"),
    ("string-rate", ("rate -i 8000", "rate -s4 fast"), "line 5: expected sample_rate"),
    ("real-rate", ("rate -i 8000", "rate -r 8e3"), "-i and an integer, got -r '8e3'"),
    ("word-rate", ("-i 8000", "-i fast"), "line 5: expected sample_rate -i and an"),
    ("no-value", ("-i 8000", "-i"), "expected sample_rate -i and an integer"),
    ("no-rate", ("sample_rate", "sample_late"), "the header has no sample_rate"),
    ("rate-0", ("-i 8000", "-i 0"), "line 5: sample_rate must be at least 1, got 0"),
    ("count-less", ("count -i 3", "count -i -3"), "must be at least 0, got -3"),
    ("channels-0", ("channel_count -i 1", "channel_count -i 0"), "at least 1, got 0"),
    ("no-channels", ("channel_count", "panel_count"), "the header has no channel_c"),
    ("channels-2", ("channel_count -i 1", "channel_count -i 2"), "sample_count 3"),
    ("twice", ("sample_sig_bits", "sample_rate"), "line 8: sample_rate is also on lin"),
    ("count-more", ("count -i 3", "count -i 4"), "needs 8 bytes, but 6 follow"),
    ("count-fewer", ("count -i 3", "count -i 2"), "needs 4 bytes, but 6 follow"),
    ("coding", ("-s3 pcm", "-s3 mp3"), "sample_coding mp3 is not supported"),
    (
        "packed",
        ("-s3 pcm", "-s19 pcm,embedded-wavpack"),
        "sample_coding pcm,embedded-wavpac",
    ),
    ("coding-type", ("-s3 pcm", "-i 3"), "line 9: expected sample_coding -s and a"),
    (
        "bytes-1",
        ("n_bytes -i 2", "n_bytes -i 1"),
        "of pcm with sample_n_bytes 1: exp",
    ),
    (
        "bytes-3",
        ("n_bytes -i 2", "n_bytes -i 3"),
        "of pcm with sample_n_bytes 3: exp",
    ),
    ("law-bytes", ("-s3 pcm", "-s4 ulaw"), "ulaw with sample_n_bytes 2: expected 1"),
    ("order", ("-s2 01", "-s2 11"), "sample_byte_format 01 or 10 in the header of"),
    ("no-order", ("sample_byte", "simple_byte"), "16-bit samples, got none"),
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


def test_not_interleaved(tmp_path: Path) -> None:
    fields = SWITCHBOARD.replace("-s4 TRUE", "-s5 FALSE")
    path = sphere(tmp_path / "x.sph", fields, bytes(4))
    with pytest.raises(InputError, match="not interleaved are not supported"):
        read_header(path)


def test_no_whole_number_of_samples(tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", NO_COUNT, bytes(7))
    with pytest.raises(InputError, match="7 bytes follow the header, expected a mul"):
        read_header(path)


@pytest.mark.parametrize("size", [0, 5, 8, 16, 300, 1023])
def test_truncated_header(size: int, tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", PCM_LITTLE, bytes(6))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match=r"x\.sph: (not a SPHERE|the header says)"):
        read_header(path)


@pytest.mark.parametrize("size", [1024, 1025, 1029])
def test_truncated_samples(size: int, tmp_path: Path) -> None:
    path = sphere(tmp_path / "x.sph", PCM_LITTLE, bytes(6))
    path.write_bytes(path.read_bytes()[:size])
    message = f"needs 6 bytes, but {size - 1024} follow the header: the file is trunc"
    with pytest.raises(InputError, match=message):
        read_header(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_header(tmp_path / "x.sph")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        SphereFile(tmp_path)
