"""The states of the hidden Markov models: three for each phone, from left to right.

A *pdf* is the number of a state's distribution, as in Kaldi. Here each state of each
phone has its own, whatever the phones beside it (a monophone system).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.files.writing import write_text
from espnet_distopt.hmm.lexicon import SILENCE

STATES = 3
"""The number of states of a phone, so that it lasts for three frames at least."""


@dataclass(frozen=True)
class PhoneStates:
    """The states of a set of phones.

    Attributes:
        phones: The phones; the first is silence.
    """

    phones: tuple[str, ...]

    @cached_property
    def _first(self) -> dict[str, int]:
        return {phone: STATES * n for n, phone in enumerate(self.phones)}

    def __len__(self) -> int:
        return STATES * len(self.phones)

    def pdfs(self, phone: str) -> range:
        """Return the pdfs of a phone's states, in their order.

        Raises:
            InputError: There is no such phone.
        """
        first = self._first.get(phone)
        if first is None:
            raise InputError(f"phone {phone!r} has no states: the lexicon has changed")
        return range(first, first + STATES)

    def phone(self, pdf: int) -> str:
        """Return the phone that a pdf belongs to."""
        return self.phones[pdf // STATES]

    def names(self) -> list[str]:
        """Return a name for each pdf, such as `SIL_0`."""
        return [f"{phone}_{state}" for phone in self.phones for state in range(STATES)]


def write_states(path: Path, states: PhoneStates) -> None:
    """Write the names of the pdfs, one a line, whole or not at all."""
    write_text(path, "".join(f"{name}\n" for name in states.names()))


def read_states(path: Path) -> PhoneStates:
    """Read the names of the pdfs.

    Raises:
        InputError: The file cannot be read, or its lines are not the states of silence
            and of other phones, each phone's in their order.
    """
    lines = list(data_lines(read_text(path), path))
    phones = [line.rpartition("_")[0] for _, line in lines[::STATES]]
    states = PhoneStates(tuple(phones))
    for (where, line), name in zip(lines, states.names(), strict=False):
        if line != name:
            raise InputError(f"{where}: expected the state {name}, got {line!r}")
    if len(lines) != len(states) or phones[:1] != [SILENCE]:
        raise InputError(
            f"{path}: expected {STATES} states of {SILENCE}, and of each other phone"
        )
    if len(set(phones)) < len(phones):
        raise InputError(f"{path}: a phone comes twice")
    return states


def phone_segments(
    states: PhoneStates, pdfs: Sequence[int]
) -> list[tuple[str, int, int]]:
    """Return the phones of an alignment, with their first frame and their end.

    A phone ends where the next frame's state is of another phone, or an earlier state
    of the same one.
    """
    segments: list[tuple[str, int, int]] = []
    for frame, pdf in enumerate(pdfs):
        phone = states.phone(pdf)
        before = pdfs[frame - 1] if frame else -1
        if frame and states.phone(before) == phone and pdf >= before:
            segments[-1] = (phone, segments[-1][1], frame + 1)
        else:
            segments.append((phone, frame, frame + 1))
    return segments
