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
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write, write_bytes
from espnet_distopt.recipes.corpora.audio.codings import (
    Samples,
    decode_alaw,
    decode_shorten,
    decode_ulaw,
    encode_alaw,
    encode_ulaw,
)

BLOCK: Final = 1024
"""The size of a header is a multiple of this many bytes."""

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
    "alaw": "alaw",
    "a-law": "alaw",
}
_BYTES = {"pcm": 2, "ulaw": 1, "alaw": 1}
_ORDERS = {"01": "little", "10": "big"}


@dataclass(frozen=True)
class SphereHeader:
    """What a header says of the samples.

    Attributes:
        path: The file.
        header_bytes: The size of the header, after which the samples start.
        sample_rate: The rate in Hz.
        channels: The number of channels, whose samples alternate.
        samples: The number of samples of each channel.
        coding: `pcm`, `ulaw` or `alaw`.
        sample_bytes: The bytes of a sample, after expansion if shorten compressed it.
        byte_order: `little` or `big`; None where it doesn't matter.
        shorten: Whether shorten has compressed the samples.
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
    fields = _Fields.parse(path, text[start.end() :].decode("latin-1"))
    return _interpret(fields, header_bytes, size - header_bytes)


def format_header(fields: Mapping[str, str | int]) -> bytes:
    """Write fields as a header.

    Raises:
        InputError: A header can't hold one of the names or values.
    """
    lines = []
    for name, value in fields.items():
        text = str(value)
        if not re.fullmatch(r"\w+", name, re.ASCII) or name == "end_head":
            raise InputError(f"{name!r} can't be the name of a SPHERE field")
        if not text or not text.isascii() or not text.isprintable():
            raise InputError(f"SPHERE field {name}: can't hold {text!r}")
        kind = "i" if isinstance(value, int) else f"s{len(text)}"
        lines.append(f"{name} -{kind} {text}\n")
    body = "".join([*lines, "end_head\n"])
    size = BLOCK * (1 + (len("NIST_1A\n   1024\n") + len(body) - 1) // BLOCK)
    return f"NIST_1A\n{size:7}\n{body}".ljust(size).encode("ascii")


@dataclass(frozen=True)
class _Fields:
    """The line, type and value of each field, by its name."""

    path: Path
    fields: dict[str, tuple[int, str, str]]

    @classmethod
    def parse(cls, path: Path, text: str) -> "_Fields":
        fields: dict[str, tuple[int, str, str]] = {}
        for number, line in enumerate(text.split("\n"), start=3):
            line = line.rstrip()
            if line == "end_head":
                return cls(path, fields)
            if not line or line.startswith(";"):
                continue
            found = _FIELD.fullmatch(line)
            if not found:
                raise InputError(
                    f"{path}: header line {number}: expected `name -type value` or "
                    f"end_head, got {line[:60]!r}"
                )
            name, kind, length, value = found[1], found[2][0], found[3], found[4] or ""
            if name in fields:
                raise InputError(
                    f"{path}: header line {number}: {name} is also on line "
                    f"{fields[name][0]}"
                )
            fields[name] = (number, kind, value[: int(length)] if length else value)
        raise InputError(f"{path}: the header has no line end_head: it is damaged")

    def integer(self, name: str, least: int) -> int | None:
        """Return the field's value, or None without the field."""
        if name not in self.fields:
            return None
        number, kind, value = self.fields[name]
        # Strings are taken, too: libsndfile writes sample_n_bytes as one.
        if kind == "r" or not re.fullmatch(r"\s*[+-]?\d+\s*", value, re.ASCII):
            raise InputError(
                f"{self.path}: header line {number}: expected {name} -i and an "
                f"integer, got -{kind} {value!r}"
            )
        if int(value) < least:
            raise InputError(
                f"{self.path}: header line {number}: {name} must be at least {least}, "
                f"got {int(value)}"
            )
        return int(value)

    def needed(self, name: str, least: int) -> int:
        """Return the value of a field that must be there."""
        value = self.integer(name, least)
        if value is None:
            raise InputError(f"{self.path}: the header has no {name}")
        return value

    def string(self, name: str) -> str | None:
        """Return the field's value, or None without the field."""
        if name not in self.fields:
            return None
        number, kind, value = self.fields[name]
        if kind != "s":
            raise InputError(
                f"{self.path}: header line {number}: expected {name} -s and a string, "
                f"got -{kind} {value!r}"
            )
        return value.strip()


def _interpret(fields: _Fields, header_bytes: int, data_bytes: int) -> SphereHeader:
    path = fields.path
    channels = fields.needed("channel_count", 1)
    coding, shorten = _coding(path, fields.string("sample_coding"))
    sample_bytes = _BYTES[coding]
    stated = fields.integer("sample_n_bytes", 1)
    if stated not in (None, sample_bytes):
        raise InputError(
            f"{path}: samples of {coding} with sample_n_bytes {stated}: expected "
            f"{sample_bytes}"
        )
    if channels > 1 and fields.string("channels_interleaved") == "FALSE":
        raise InputError(f"{path}: channels that are not interleaved are not supported")
    count = fields.integer("sample_count", 0)
    return SphereHeader(
        path=path,
        header_bytes=header_bytes,
        sample_rate=fields.needed("sample_rate", 1),
        channels=channels,
        samples=_samples(path, count, channels, sample_bytes, shorten, data_bytes),
        coding=coding,
        sample_bytes=sample_bytes,
        byte_order=_byte_order(fields) if sample_bytes > 1 and not shorten else None,
        shorten=shorten,
    )


def _coding(path: Path, value: str | None) -> tuple[str, bool]:
    """Return the coding's name, and whether shorten has compressed the samples."""
    name, *compression = (value or "pcm").lower().replace(" ", "").split(",")
    shorten = len(compression) == 1 and compression[0].startswith("embedded-shorten-v")
    if name not in _CODINGS or (compression and not shorten):
        raise InputError(
            f"{path}: sample_coding {value} is not supported, only pcm, ulaw and alaw, "
            "plain or with embedded-shorten"
        )
    return _CODINGS[name], shorten


def _byte_order(fields: _Fields) -> str:
    value = fields.string("sample_byte_format")
    if value not in _ORDERS:
        raise InputError(
            f"{fields.path}: expected sample_byte_format 01 or 10 in the header of "
            f"16-bit samples, got {value or 'none'}"
        )
    return _ORDERS[value]


def _samples(
    path: Path,
    count: int | None,
    channels: int,
    sample_bytes: int,
    shorten: bool,
    data_bytes: int,
) -> int:
    """Return the number of samples of a channel."""
    if shorten:
        if count is None:
            raise InputError(f"{path}: the header has no sample_count")
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
        """Open the file and read its header.

        Raises:
            InputError: The header is bad in one of the ways that `read_header` names.
        """
        self.header = read_header(path)
        self._file = open(path, "rb")  # noqa: SIM115 (closed by __exit__)
        self._expanded: NDArray[Any] | None = None

    def read(self, start: int, stop: int, channel: int) -> Samples:
        """Read a span of one channel; only the span is read from the file.

        Only a file that shorten has compressed is expanded as a whole, by the first
        call.

        Args:
            start: The index of the first sample.
            stop: The index after the last sample.
            channel: The index of the channel; 0 is the first.

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
        if header.coding == "ulaw":
            return decode_ulaw(span)
        if header.coding == "alaw":
            return decode_alaw(span)
        return span.astype(np.int16)

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

    def __enter__(self) -> "SphereFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def write_sphere(
    path: Path,
    samples: Samples,
    sample_rate: int,
    *,
    coding: str = "ulaw",
    byte_order: str = "little",
    fields: Mapping[str, str | int] | None = None,
) -> None:
    """Write a SPHERE file, whole or not at all.

    Args:
        path: The file to write or to replace.
        samples: The samples, shape (time, channels).
        sample_rate: The rate in Hz.
        coding: `pcm`, `ulaw` or `alaw`.
        byte_order: The order of bytes of `pcm`, `little` or `big`.
        fields: Further fields of the header, such as database_id; they come before
            those that describe the samples.

    Raises:
        InputError: The samples have another shape or type, the coding or byte order is
            unknown, a field can't be in a header, or the path can't be written.
    """
    if samples.ndim != 2 or samples.dtype != np.int16 or samples.shape[1] < 1:
        raise InputError(
            f"{path}: expected 16-bit samples of shape (time, channels), got "
            f"{samples.dtype} of shape {samples.shape}"
        )
    if sample_rate < 1:
        raise InputError(f"{path}: expected a sample rate above 0, got {sample_rate}")
    content, form = _encode(path, samples, coding, byte_order)
    described = {
        "channel_count": samples.shape[1],
        "sample_count": len(samples),
        "sample_rate": sample_rate,
        **form,
    }
    if taken := described.keys() & (fields or {}).keys():
        raise InputError(f"{path}: {sorted(taken)[0]} is not for the caller to set")
    header = format_header({**(fields or {}), **described})
    with explain_failed_write(path):
        write_bytes(path, header + content)


def _encode(
    path: Path, samples: Samples, coding: str, byte_order: str
) -> tuple[bytes, dict[str, str | int]]:
    """Code the samples; return the bytes, and the fields that describe them."""
    form: dict[str, str | int] = {"channels_interleaved": "TRUE"}
    if coding in ("ulaw", "alaw"):
        encode = encode_ulaw if coding == "ulaw" else encode_alaw
        form |= {"sample_n_bytes": 1, "sample_byte_format": "1", "sample_sig_bits": 8}
        content = encode(samples).tobytes()
    elif coding == "pcm" and byte_order in ("little", "big"):
        order = "01" if byte_order == "little" else "10"
        form |= {"sample_n_bytes": 2, "sample_byte_format": order}
        form |= {"sample_sig_bits": 16}
        content = samples.astype(_DTYPES[byte_order]).tobytes()
    else:
        raise InputError(
            f"{path}: expected coding ulaw, alaw or pcm (little or big), got {coding} "
            f"({byte_order})"
        )
    return content, form | {"sample_coding": coding}
