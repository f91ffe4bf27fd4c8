"""conv.tab (conv_tab.csv), the table in Switchboard's documentation of who called whom.

Each line is a conversation: its number, whether it is active, the personal numbers
(PIN) of the caller and the callee, and fields that are not used here, as in
`2001, "Y", 1020, 1044, 303, 0, 910304, 1218, 1222, , `.
"""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from espnet_distopt.corpora.ldc.losses import Losses
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text


def read_conv_tab(path: Path, losses: Losses | None = None) -> dict[str, str]:
    """Read who speaks on which side.

    Args:
        path: The table.
        losses: Gets the lines that have no conversation and two PINs, and second lines
            of a conversation; None makes them an error.

    Returns:
        The PIN of each conversation side: `sw02001-A` (the caller) -> `1020`.

    Raises:
        InputError: The file can't be read or has no conversations, or a line is bad and
            none may be left out; the message names file and line.
    """
    losses = losses or Losses("lines")
    speakers: dict[str, str] = {}
    for where, line in data_lines(read_text(path), path, comment="#"):
        row = next(csv.reader([line], skipinitialspace=True))
        conversation, *rest = (field.strip() for field in row)
        if not speakers and conversation.startswith("conv"):
            continue  # the names of the columns
        if len(rest) < 3 or not all(
            field.isdecimal() for field in (conversation, rest[1], rest[2])
        ):
            losses.add(
                f"{where}: expected 'conversation, active, PIN of side A, PIN of side "
                f"B, ...' as in '2001, Y, 1020, 1044', got {line[:60]!r}"
            )
            continue
        name = f"sw{int(conversation):05d}"
        if f"{name}-A" in speakers:
            losses.add(f"{where}: a second line of conversation {conversation}")
            continue
        speakers |= {f"{name}-A": rest[1], f"{name}-B": rest[2]}
        losses.kept += 1
    if not speakers:
        raise InputError(f"{path}: no conversations in it")
    return speakers


def write_conv_tab(path: Path, speakers: Mapping[str, str]) -> None:
    """Write the table, with the columns that `read_conv_tab` needs.

    Args:
        path: The file to write.
        speakers: The PIN of each conversation side, as `read_conv_tab` returns them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        f'{name[3:]}, "Y", {speakers[f"{name}-A"]}, {speakers[f"{name}-B"]}\n'
        for name in _conversations(speakers)
    ]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")


def _conversations(sides: Iterable[str]) -> list[str]:
    return sorted({side.rpartition("-")[0] for side in sides})
