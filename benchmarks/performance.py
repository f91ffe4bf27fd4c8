"""The command copies the tables of benchmarks/results/ into docs/performance.md.

A table stands between `<!-- NAME -->` and `<!-- end -->`. The text around the tables is
written by hand, but the tables never are.

    python benchmarks/performance.py
"""

import re
import sys
from pathlib import Path

from report import ROOT, replace_file

PAGE = ROOT / "docs" / "performance.md"
_PLACE = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(page: str, results: Path) -> str:
    """Return a page with the tables of a folder.

    Args:
        page: the text of the page.
        results: the folder of the tables.

    Raises:
        FileNotFoundError: the folder has no table with a name on the page.
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
    replace_file(PAGE, new)
    print(f"{PAGE}: {len(_PLACE.findall(new))} tables")


if __name__ == "__main__":
    main()
