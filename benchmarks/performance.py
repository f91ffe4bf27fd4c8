"""Puts the tables of benchmarks/results/ into docs/performance.md.

A table stands between `<!-- NAME -->` and `<!-- end -->`: the text around it is written
by hand, the table never is.

    python benchmarks/performance.py
"""

import re
import sys
from pathlib import Path

from report import ROOT

from espnet_distopt.files.writing import write_text

PAGE = ROOT / "docs" / "performance.md"
_PLACE = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str, results: Path) -> str:
    """Return `page` with the tables as they are in `results`.

    Raises:
        FileNotFoundError: there is no such table.
    """

    def table(place: re.Match[str]) -> str:
        name = place["name"]
        text = (results / f"{name}.md").read_text(encoding="utf-8").strip()
        return f"<!-- {name} -->\n{text}\n<!-- end -->"

    return _PLACE.sub(table, page)


def main() -> None:
    """Fill the page in place."""
    page = PAGE.read_text(encoding="utf-8")
    try:
        new = filled(page, ROOT / "benchmarks" / "results")
    except FileNotFoundError as error:
        sys.exit(f"{PAGE}: {error.filename} is missing: run that benchmark first")
    write_text(PAGE, new)
    print(f"{PAGE}: {len(_PLACE.findall(new))} tables")


if __name__ == "__main__":
    main()
