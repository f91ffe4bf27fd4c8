"""Reads and writes NIST SPHERE files, the format of the LDC's telephone speech."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from espnet_distopt.corpora.audio import g711, shorten
from espnet_distopt.corpora.audio.sphere_header import (
    SphereHeader,
    format_header,
    read_header,
)
from espnet_distopt.errors import InputError
from espnet_distopt.files.writing import explain_failed_write, write_bytes

__all__ = ["SphereFile", "SphereHeader", "read_header", "write_sphere"]

Samples = NDArray[np.int16]

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
            return g711.decode_ulaw(span)
        if header.coding == "alaw":
            return g711.decode_alaw(span)
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
            self._expanded = shorten.decode(
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
        encode = g711.encode_ulaw if coding == "ulaw" else g711.encode_alaw
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
