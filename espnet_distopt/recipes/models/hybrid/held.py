"""The frames from which a learner cuts its chunks: those of a set, or a window of them.

Frames that are cut on the CPU give a GPU less than it takes, as IBM's network trains on
a million frames a second. Where its memory has room for the whole set (`HeldFrames`),
they are cut there, by one gather for each sequence of a batch. Nothing is copied but
the places of the chunks. An utterance comes into memory when it is read for the first
time, so that a training begins as soon as without it, and later epochs read nothing.

Else an utterance is held from its first chunk to its last one (`PassingFrames`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

GIB = 2**30


class HeldFrames:
    """Room for all frames of a set, one utterance behind the other.

    Args:
        frames: Utterance -> its number of frames.
        length: The number of frames of a chunk.
    """

    def __init__(
        self, frames: Mapping[str, int], length: int, device: torch.device
    ) -> None:
        ends = np.cumsum(np.fromiter(frames.values(), np.int64, len(frames)))
        first = [0, *ends[:-1].tolist()]
        self._first = dict(zip(frames, first, strict=True))
        self._total, self._device = int(ends[-1]), device
        self._held: set[str] = set()
        self._tensors: dict[str, Tensor] = {}
        self._within = torch.arange(length, device=device)

    def __contains__(self, name: str) -> bool:
        """Return whether an utterance is held."""
        return name in self._held

    def put(self, name: str, sequences: Mapping[str, Tensor]) -> None:
        """Hold an utterance: the sequences of its frames, each of shape (T, ...)."""
        for key, values in sequences.items():
            room = self._tensors.get(key)
            if room is None:
                shape = (self._total, *values.shape[1:])
                room = torch.empty(shape, dtype=values.dtype, device=self._device)
                self._tensors[key] = room
            first = self._first[name]
            room[first : first + len(values)].copy_(values)
        self._held.add(name)

    def cut(self, names: Sequence[str], starts: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return chunks of all sequences, each of shape (B, T, ...).

        `starts` has the first frame of each chunk, shape (B,); its utterance is held.
        """
        places = torch.from_numpy(starts + [self._first[name] for name in names])
        if self._device.type == "cuda":
            # Pinned, so that the copy does not wait for the steps before it.
            places = places.pin_memory().to(self._device, non_blocking=True)
        frames = places[:, None] + self._within
        return {key: room[frames] for key, room in self._tensors.items()}


class PassingFrames:
    """The utterances of which chunks have been cut, and others are still to be.

    Args:
        chunks: Utterance -> the number of its chunks that will be cut.
        length: The number of frames of a chunk.
    """

    def __init__(self, chunks: Counter[str], length: int) -> None:
        self._left, self._length = chunks, length
        self._sequences: dict[str, Mapping[str, Tensor]] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether an utterance is held."""
        return name in self._sequences

    def put(self, name: str, sequences: Mapping[str, Tensor]) -> None:
        """Hold an utterance: the sequences of its frames, each of shape (T, ...)."""
        self._sequences[name] = sequences

    def cut(self, names: Sequence[str], starts: NDArray[np.int64]) -> dict[str, Tensor]:
        """Return chunks as `HeldFrames.cut` does; each is cut once."""
        ends = (starts + self._length).tolist()
        pieces = [
            {key: values[start:end] for key, values in self._sequences[name].items()}
            for name, start, end in zip(names, starts.tolist(), ends, strict=True)
        ]
        found = {key: torch.stack([p[key] for p in pieces]) for key in pieces[0]}
        self._left.subtract(names)
        for name in {name for name in names if not self._left[name]}:
            del self._sequences[name]
        return found


def hold(
    frames: Mapping[str, int],
    sample: Callable[[], Mapping[str, NDArray[np.generic]]],
    length: int,
    gib: float | None,
    device: torch.device,
) -> HeldFrames | None:
    """Return room for the frames of a set; None if there is too little.

    Args:
        frames: Utterance -> its number of frames.
        sample: Reads the sequences of one of them, each of shape (T, ...).
        length: The number of frames of a chunk.
        gib: The most memory to take, in GiB; None for half of what a GPU has free, and
            nothing on a CPU.
        device: Where.
    """
    if gib is None:
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
        gib = free / 2 / GIB
    if gib == 0:
        return None
    a_frame = sum(values.nbytes / len(values) for values in sample().values())
    wanted = sum(frames.values()) * a_frame / GIB
    of = f"the frames of {len(frames)} utterances, {wanted:.2f} GiB,"
    if wanted > gib:
        logging.info(
            f"{of} are read anew in each epoch: frames_in_memory allows {gib:.2f} GiB"
        )
        return None
    logging.info(f"{of} are read once and held in memory ({device.type})")
    return HeldFrames(frames, length, device)
