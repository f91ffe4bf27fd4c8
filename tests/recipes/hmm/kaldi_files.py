"""Writes files in Kaldi's binary form, from the description of its formats alone."""

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

PHONES = 2
STATES = 3


def number(value: int) -> bytes:
    return b"\4" + struct.pack("<i", value)


def real(value: float) -> bytes:
    return b"\4" + struct.pack("<f", value)


def numbers(values: Sequence[int]) -> bytes:
    """Return a vector of integers."""
    return b"\4" + struct.pack(f"<{len(values) + 1}i", len(values), *values)


def topology(chain: bool) -> bytes:
    """Return three states from left to right, and a last one without arcs."""
    states = b""
    for state in range(STATES):
        states += number(state) * (2 if chain else 1) + number(2)
        states += number(state) + real(0.75) + number(state + 1) + real(0.25)
    states += number(-1) * (2 if chain else 1) + number(0)
    head = numbers([1, 2]) + numbers([-1, 0, 0]) + (number(-1) if chain else b"")
    return b"<Topology> " + head + number(1) + number(4) + states + b"</Topology> "


def model(pdfs: Sequence[int], chain: bool = False) -> bytes:
    """Return a transition model; each state of each phone has one of `pdfs`.

    Args:
        pdfs: The pdf of each state of phone 1, and then of phone 2.
        chain: Whether a state's loop has a pdf of its own, which is 10 higher.
    """
    kind = b"Tuples" if chain else b"Triples"
    states = b""
    for index, pdf in enumerate(pdfs):
        states += number(1 + index // STATES) + number(index % STATES) + number(pdf)
        states += number(pdf + 10) if chain else b""
    return b"".join(
        [
            b"\0B<TransitionModel> " + topology(chain),
            b"<" + kind + b"> " + number(len(pdfs)) + states + b"</" + kind + b"> ",
            b"<LogProbs> FV " + number(1) + struct.pack("<f", 0.0) + b"</LogProbs> ",
            b"</TransitionModel> <DIMENSION> " + number(39),
        ]
    )


def archive(alignments: Mapping[str, Sequence[int]]) -> bytes:
    """Return an archive of vectors of integers, each of which tells its own size."""
    return b"".join(
        name.encode() + b" \0B" + number(len(values)) + b"".join(map(number, values))
        for name, values in alignments.items()
    )


def write_directory(
    path: Path, pdfs: Sequence[int], jobs: Sequence[Mapping[str, Sequence[int]]]
) -> None:
    """Write `final.mdl` and `ali.N.gz`, with transition-ids for each job."""
    path.mkdir(exist_ok=True)
    (path / "final.mdl").write_bytes(model(pdfs))
    for job, alignments in enumerate(jobs, start=1):
        (path / f"ali.{job}.gz").write_bytes(gzip.compress(archive(alignments)))


def transition_ids(states: Sequence[int]) -> list[int]:
    """Return the transition-ids of a path of states, numbered over all phones.

    State s has the loop 2 s + 1 and the arc 2 s + 2 that leaves it.
    """
    following = [*states[1:], -1]
    return [
        2 * state + (1 if after == state else 2)
        for state, after in zip(states, following, strict=True)
    ]
