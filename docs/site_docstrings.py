"""Shows the examples in docstrings as code in the API reference (see mkdocs.yml)."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)
"""The lines of an example: from a prompt to the next empty line."""


class FencedExamples(griffe.Extension):
    """Puts fences around the examples of each docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return a docstring whose examples are in fences.

    Under the heading `Example:`, which becomes a box, an example keeps its indentation;
    anywhere else it would make Markdown show the fences themselves.
    """

    def fence(found: re.Match[str]) -> str:
        before = docstring[: found.start()].rstrip().splitlines()
        boxed = re.search(r"^ *Example:$", "\n".join(before), re.MULTILINE)
        own = found[1] if boxed else ""
        lines = [own + line.removeprefix(found[1]) for line in found[0].splitlines()]
        return "\n".join([f"{own}```pycon", *lines, f"{own}```"])

    return EXAMPLE.sub(fence, docstring)
