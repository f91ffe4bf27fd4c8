"""NIST SPHERE files, the format of the LDC's telephone speech.

The header is text in a multiple of 1024 bytes. The first line is `NIST_1A`, and the
second is the header's size in bytes. Then come fields in any order, each on a line:
`name -i 8000`, `name -r 1.5` or `name -s4 ulaw` (with the string's length). The line
`end_head` ends them; what follows up to the header's size means nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write, write_bytes
from espnet_distopt.recipes.corpora.audio.ulaw import Samples, decode_ulaw, encode_ulaw

_START = re.compile(rb"NIST_1A\r?\n *(\d+) *\r?\n")
_FIELD = re.compile(r"(\S+)\s+-(i|r|s(\d+))(?:\s(.*))?")
_LARGEST = 1 << 20
_CODINGS = {
    "pcm": "pcm",
    "pcm-2": "pcm",
    "ulaw": "ulaw",
    "u-law": "ulaw",
    "mu-law": "ulaw",
    "mulaw": "ulaw",
}
_BYTES = {"pcm": 2, "ulaw": 1}
_ORDERS = {"01": "little", "10": "big"}


@dataclass(frozen=True)
class SphereHeader:
    """What a header says of the samples.

    Attributes:
        sample_rate: The rate in Hz.
        samples: The number of samples of each channel.
        coding: `pcm` or `ulaw`.
        sample_bytes: The bytes of a sample, after expansion if shorten compressed it.
        byte_order: `little` or `big`; None where it doesn't matter.
    """

    path: Path
    header_bytes: int
    sample_rate: int
    channels: int
    samples: int
    coding: str
    sample_bytes: int
    byte_order: str | None
    shorten: bool

    @property
    def seconds(self) -> float:
        """Return the duration in seconds."""
        return self.samples / self.sample_rate

    @property
    def frame_bytes(self) -> int:
        """Return the bytes that one sample of every channel takes together."""
        return self.channels * self.sample_bytes


def read_header(path: Path) -> SphereHeader:
    """Read the header of a SPHERE file, and check the file's size against it.

    Headers of old discs count the samples of all channels together. Where the file's
    size shows that, the count is divided by the number of channels.

    Raises:
        InputError: The file is missing or not SPHERE; its header is damaged, misses a
            field or tells of a form that is not supported; or its size disagrees.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            first = file.read(32)
            start = _START.match(first)
            file.seek(0)
            text = file.read(min(int(start[1]), _LARGEST)) if start else b""
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    if not start:
        raise InputError(
            f"{path}: not a SPHERE file: expected NIST_1A and the header's size in its "
            f"first two lines, got {first[:16]!r}"
        )
    header_bytes = int(start[1])
    if header_bytes > len(text):
        raise InputError(
            f"{path}: the header says it has {header_bytes} bytes, but the file has "
            f"{size}: it is truncated, or the header wrong"
        )
    fields = _parse(path, text[start.end() :].decode("latin-1"))
    return _interpret(path, fields, header_bytes, size - header_bytes)


def _parse(path: Path, text: str) -> dict[str, str]:
    """Return the value of each field of a header, by its name."""
    fields: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=3):
        line = line.rstrip()
        if line == "end_head":
            return fields
        if not line or line.startswith(";"):
            continue
        found = _FIELD.fullmatch(line)
        if not found or found[1] in fields:
            raise InputError(
                f"{path}: header line {number}: expected `name -type value` with a new "
                f"name, or end_head, got {line[:60]!r}"
            )
        name, length, value = found[1], found[3], found[4] or ""
        fields[name] = (value[: int(length)] if length else value).strip()
    raise InputError(f"{path}: the header has no line end_head: it is damaged")


def _number(path: Path, fields: Mapping[str, str], name: str, least: int) -> int:
    value = fields.get(name, "nothing")
    # The type is not looked at: libsndfile writes sample_n_bytes as a string.
    if not re.fullmatch(r"[+-]?\d+", value, re.ASCII) or int(value) < least:
        raise InputError(
            f"{path}: expected {name} in the header, a number of at least {least}, got "
            f"{value}"
        )
    return int(value)


def _interpret(
    path: Path, fields: Mapping[str, str], header_bytes: int, data_bytes: int
) -> SphereHeader:
    channels = _number(path, fields, "channel_count", 1)
    coding, shorten = _coding(path, fields.get("sample_coding", "pcm"))
    sample_bytes = _BYTES[coding]
    if fields.get("sample_n_bytes", str(sample_bytes)) != str(sample_bytes):
        raise InputError(
            f"{path}: samples of {coding} with sample_n_bytes "
            f"{fields['sample_n_bytes']}: expected {sample_bytes}"
        )
    if channels > 1 and fields.get("channels_interleaved") == "FALSE":
        raise InputError(f"{path}: channels that are not interleaved are not supported")
    order = None
    if sample_bytes > 1 and not shorten:
        order = _ORDERS.get(fields.get("sample_byte_format", ""))
        if order is None:
            raise InputError(
                f"{path}: expected sample_byte_format 01 or 10 in the header of 16-bit "
                "samples"
            )
    count = None
    if shorten or "sample_count" in fields:
        count = _number(path, fields, "sample_count", 0)
    return SphereHeader(
        path=path,
        header_bytes=header_bytes,
        sample_rate=_number(path, fields, "sample_rate", 1),
        channels=channels,
        samples=_samples(path, count, channels, sample_bytes, shorten, data_bytes),
        coding=coding,
        sample_bytes=sample_bytes,
        byte_order=order,
        shorten=shorten,
    )


def _coding(path: Path, value: str) -> tuple[str, bool]:
    """Return the coding's name, and whether shorten has compressed the samples."""
    name, *compression = value.lower().replace(" ", "").split(",")
    shorten = len(compression) == 1 and compression[0].startswith("embedded-shorten-v")
    if name not in _CODINGS or (compression and not shorten):
        raise InputError(
            f"{path}: sample_coding {value} is not supported, only pcm and ulaw, "
            "plain or with embedded-shorten"
        )
    return _CODINGS[name], shorten


def _samples(
    path: Path,
    count: int | None,
    channels: int,
    sample_bytes: int,
    shorten: bool,
    data_bytes: int,
) -> int:
    """Return the number of samples of a channel."""
    if shorten and count is not None:
        return count
    frames, rest = divmod(data_bytes, channels * sample_bytes)
    if not rest and count in (None, frames, frames * channels):
        return frames
    if count is None:
        raise InputError(
            f"{path}: {data_bytes} bytes follow the header, expected a multiple of "
            f"{channels * sample_bytes}: the file is truncated"
        )
    raise InputError(
        f"{path}: sample_count {count} ({channels} channels, {sample_bytes} bytes a "
        f"sample) needs {count * channels * sample_bytes} bytes, but {data_bytes} "
        "follow the header: the file is truncated, or the header wrong"
    )


_DTYPES = {None: "u1", "little": "<i2", "big": ">i2"}


class SphereFile:
    """An open SPHERE file, to be used in a `with` statement.

    Attributes:
        header: What the header says of the samples.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; what `read_header` refuses is refused here, too."""
        self.header = read_header(path)
        self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        self._expanded: NDArray[Any] | None = None

    def read(self, start: int, stop: int, channel: int) -> Samples:
        """Read a span of one channel; only the span is read from the file.

        Only a file that shorten has compressed is expanded as a whole, by the first
        call.

        Returns:
            The samples, shape (stop - start,).

        Raises:
            InputError: There is no such channel or span, or the file is damaged.
        """
        header = self.header
        if not 0 <= channel < header.channels:
            raise InputError(
                f"{header.path}: has no channel {channel + 1}, only {header.channels}"
            )
        if not 0 <= start <= stop <= header.samples:
            raise InputError(
                f"{header.path}: has no samples {start} to {stop}, only "
                f"{header.samples}"
            )
        if header.shorten:
            span = self._expand()[channel, start:stop]
        else:
            span = self._read_frames(start, stop)[:, channel]
        return decode_ulaw(span) if header.coding == "ulaw" else span.astype(np.int16)

    def _read_frames(self, start: int, stop: int) -> NDArray[Any]:
        header = self.header
        size = (stop - start) * header.frame_bytes
        self._file.seek(header.header_bytes + start * header.frame_bytes)
        content = self._file.read(size)
        if len(content) < size:
            raise InputError(f"{header.path}: became shorter while it was read")
        values = np.frombuffer(content, _DTYPES[header.byte_order])
        return values.reshape(-1, header.channels)

    def _expand(self) -> NDArray[Any]:
        """Decode the whole shorten stream, once, into shape (channels, time)."""
        if self._expanded is None:
            try:  # Importing numba is slow.
                from espnet_distopt.recipes.corpora.audio.shorten import decode_shorten
            except ModuleNotFoundError as error:
                raise InputError(
                    "SPHERE files that shorten has compressed are read with "
                    f"{error.name}, which is not installed: pip install numba"
                ) from None
            header = self.header
            self._file.seek(header.header_bytes)
            self._expanded = decode_shorten(
                self._file.read(),
                str(header.path),
                coding=header.coding,
                channels=header.channels,
                samples=header.samples,
            )
        return self._expanded

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_sphere(
    path: Path, samples: Samples, sample_rate: int, **fields: str | int
) -> None:
    """Write a SPHERE file of mu-law, whole or not at all.

    The samples have 16 bits and the shape (time, channels), the rate is in Hz, and
    `fields` are further ones of the header, such as database_id.

    Raises:
        InputError: The path can't be written.
    """
    described = {
        **fields,
        "channel_count": samples.shape[1],
        "sample_count": len(samples),
        "sample_rate": sample_rate,
        "channels_interleaved": "TRUE",
        "sample_n_bytes": 1,
        "sample_byte_format": "1",
        "sample_sig_bits": 8,
        "sample_coding": "ulaw",
    }
    lines = ["NIST_1A", "   1024"]
    for name, value in described.items():
        kind = "i" if isinstance(value, int) else f"s{len(value)}"
        lines.append(f"{name} -{kind} {value}")
    header = "".join(f"{line}\n" for line in [*lines, "end_head"])
    with explain_failed_write(path):
        write_bytes(path, header.ljust(1024).encode() + encode_ulaw(samples).tobytes())
