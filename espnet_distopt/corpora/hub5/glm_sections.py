"""Chooses the lines of a GLM that apply to references, or to recognized words."""

import re
from collections.abc import Iterator, Sequence

from espnet_distopt.corpora.hub5.glm_rules import Oddities

_SECTION = re.compile(r';;\s+INPUT_DEPENDENT_APPLICATION\s*=\s*"([^"]*)"', re.ASCII)


def applying(
    lines: Sequence[str], names: Sequence[str], oddities: Oddities
) -> Iterator[tuple[int, str]]:
    """Yield the number (from 1) and the text of each line that applies.

    A line `;; INPUT_DEPENDENT_APPLICATION = "ctm"` starts a section, for the inputs of
    which one name matches the regular expression in it. Before it, all lines apply.

    Args:
        lines: The lines of the file.
        names: The names of the input, such as `ctm` and `hyp`.
        oddities: Gets the lines that are no such line, though they look like one.
    """
    applies = True
    for number, line in enumerate(lines, start=1):
        if section := _SECTION.match(line):
            try:
                applies = any(re.search(section[1].lower(), name) for name in names)
            except re.error:
                oddities.add(number, line, "expected a regular expression in quotes")
                applies = False
        elif line.startswith(";;") and "INPUT_DEPENDENT_APPLICATION" in line:
            oddities.add(
                number,
                line,
                'expected ;; INPUT_DEPENDENT_APPLICATION = "ctm" or the like; this '
                "starts no section",
            )
        if applies:
            yield number, line
