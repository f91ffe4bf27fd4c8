"""What the documentation links to exists; what tests cite of it is there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from espnet_distopt.algorithms import ALGORITHMS
from espnet_distopt.bin import simulate
from espnet_distopt.bin.simulate_arguments import methods_of, trial_of

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
FAMILIES = sorted((DOCS / "algorithms").glob("*.md"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

ID = "(?:AD|AS|BA|BM|D|H|LB|LS|R|SC|SD)[0-9]+"
RUN = {
    "README.md": "tests/test_readme.py",
    "docs/how_it_works.md": "tests/test_added_algorithm.py",
}
"""Page with a block of Python, and the test that runs it."""
TERMS = {
    *("learner", "rank", "node", "super learner", "worker", "driver"),
    *("step", "attempted step", "update", "batch", "effective batch size"),
    *("block", "epoch", "snapshot", "exchange", "correction", "staleness"),
    *("consensus model", "consensus distance", "mixing matrix"),
}


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def heading_anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        aim = page.parent / path if path else page
        assert aim.exists(), f"{named(page)}: {target}"
        if anchor:
            assert anchor in heading_anchors(aim), f"{named(page)}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_list_items_go_on_as_both_renderers_read_them(page: Path) -> None:
    """After an empty line, a list item goes on with four spaces; its code has a fence.

    A forge takes two spaces, too, and code by its indentation. The site's Markdown
    takes both for text outside the list.
    """
    fenced, before = False, ""
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not before:
            found = re.match(r" {1,3}\S| {5,}\S", line)
            assert not found, f"{named(page)}, line {number}: {line}"
        before = line


def vectors(page: Path) -> set[str]:
    """The vectors and rules that a page defines, in bold at a list item's start."""
    return set(re.findall(rf"^- \*\*({ID})\*\*", page.read_text(), re.MULTILINE))


def cited(text: str) -> Iterator[str]:
    """What a test file cites: ids, ranges ("BM1 to BM7"), and names of tests."""
    for first, last in re.findall(rf"\b({ID})(?:\s+to\s+({ID}))?\b", text):
        family, start = re.fullmatch(r"([A-Z]+)(\d+)", first).groups()  # type: ignore[union-attr]
        stop = int(last.removeprefix(family)) if last else int(start)
        yield from (f"{family}{number}" for number in range(int(start), stop + 1))
    for name in re.findall(r"def test_(\w+)", text):
        prefix = re.match(rf"(?:{ID.lower()}_)+", name + "_")
        yield from prefix[0].upper().strip("_").split("_") if prefix else ()


def test_citations_are_understood() -> None:
    text = '"""Blocks (docs/algorithms/block.md, BM2 to BM4, LS1)."""\n'
    text += "def test_as8_as9_orders(): ...\ndef test_d1(): ...\ndef test_dry(): ...\n"
    assert list(cited(text)) == ["BM2", "BM3", "BM4", "LS1", "AS8", "AS9", "D1"]


@pytest.mark.parametrize("file", [f for f in TESTS if f != Path(__file__)], ids=named)
def test_what_a_test_cites_is_on_the_page_that_it_names(file: Path) -> None:
    text = file.read_text()
    known: set[str] = set()
    for name in re.findall(r"docs/algorithms/\w+\.md", text):
        assert (ROOT / name).exists(), f"{named(file)} cites {name}"
        known |= vectors(ROOT / name)
    missing = set(cited(text)) - known
    assert not missing, f"{named(file)}: {missing} are on no page that it names"
    assert "facts:" not in text


@pytest.mark.parametrize("page", FAMILIES, ids=named)
def test_every_vector_has_a_test(page: Path) -> None:
    """Ranges do not count here: a file may cite one of which it lacks a part."""
    texts = (re.sub(rf"{ID}\s+to\s+{ID}", "", file.read_text()) for file in TESTS)
    held = {found for text in texts for found in cited(text)}
    defined = {found for found in vectors(page) if not found.startswith("R")}
    assert defined <= held, f"{named(page)}: no test cites {defined - held}"


@pytest.mark.parametrize("page", FAMILIES, ids=named)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    text = "\n".join(file.read_text() for file in TESTS)
    for name in re.findall(r"`(test_\w+)`", page.read_text()):
        assert f"def {name}(" in text, f"{named(page)}: {name}"


def test_the_glossary_defines_each_term_once() -> None:
    text = (DOCS / "glossary.md").read_text()
    found = re.findall(r"^\*\*([^*]+)\*\*:", text, re.MULTILINE)
    assert len(found) == len(set(found))
    assert set(found) >= TERMS, TERMS - set(found)


def test_the_map_of_the_package_names_every_folder() -> None:
    text = (DOCS / "how_it_works.md").read_text()
    package = ROOT / "espnet_distopt"
    for path in [*package.glob("*/__init__.py"), *package.glob("*.py")]:
        place = f"{path.parent.name}/" if path.parent != package else path.name
        assert f"[{place}]" in text or place == "__init__.py", place


def test_every_block_of_python_is_run_by_a_test() -> None:
    blocks = {named(page): page.read_text().count("```python") for page in PAGES}
    assert {page: count for page, count in blocks.items() if count} == dict.fromkeys(
        RUN, 1
    )
    for page, test in RUN.items():
        text = (ROOT / test).read_text()
        assert Path(page).name in text and "```" in text, test


def test_what_the_pages_say_of_methods_exists() -> None:
    """`Class.method` in a page is one in the package, and so is an attribute."""
    code = "\n".join(f.read_text() for f in (ROOT / "espnet_distopt").rglob("*.py"))
    for page in [*FAMILIES, DOCS / "how_it_works.md", DOCS / "glossary.md"]:
        for owner, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", page.read_text()):
            assert f"class {owner}" in code, f"{named(page)}: {owner}"
            found = re.search(rf"def {name}\(|\.{name}\b|^ +{name}:", code, re.M)
            assert found, f"{named(page)}: {owner}.{name}"


def test_the_page_of_faults_says_which_algorithms_survive() -> None:
    text = (DOCS / "reliability.md").read_text()
    table = text.partition("## When a learner dies")[2].partition("\n\nA ")[0]
    said = {
        name: row.split("|")[2].strip().startswith("go on")
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.split("|")[1] if "|" in row else "")
    }
    known = {name: entry.algorithm.survives for name, entry in ALGORITHMS.items()}
    # adasum survives by its options, so that only its instances know.
    assert said == known | {"adasum": True}


def simulations(text: str) -> list[list[str]]:
    """The arguments of the simulations that a page starts."""
    start = r"^ +(?:distopt |python -m espnet_distopt\.bin\.)simulate (.*)$"
    joined = text.replace("\\\n", " ")
    found = re.findall(start, joined, re.MULTILINE)
    return [shlex.split(words, comments=True) for words in found]


SIMULATIONS = [words for page in PAGES for words in simulations(page.read_text())]


@pytest.mark.parametrize("words", SIMULATIONS, ids=" ".join)
def test_the_simulations_of_the_pages_are_possible(words: list[str]) -> None:
    args = simulate.get_parser().parse_args(words)
    args.time_only |= args.advise
    if args.config is not None:  # is of a training that the reader has made
        return
    trial = trial_of(args)
    for method in methods_of(args):
        for size in args.learners:
            trial.check(method, size)


def test_the_pages_have_simulations() -> None:
    assert len(SIMULATIONS) >= 6
