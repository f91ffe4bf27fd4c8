"""Completes the documentation site: mkdocs calls the functions `on_...` (mkdocs.yml).

The pages in docs/ are written for a reader of the repository, with links to any file in
it. Here they become a site: README.md is its home page, reports of benchmarks and the
texts of the repository's root are pages as well, each folder of the package has a page
of the API reference, and each command one of its options. Links are turned to those
pages; a link to a file that the site does not have leaves its words alone.
"""

import ast
import importlib
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from espnet_distopt.bin.distopt import commands as commands_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "espnet_distopt"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")

ROOT_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
}
RESULTS = "benchmarks/results"
OPTIONS_OF_ESPNET = {"asr_inference", "asr_train", "lm_train", "ocr_train"}
"""Commands whose options are ESPnet's: thousands of lines, and seconds of imports."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    made = [*root_pages(), *results(), *reference(), *commands(), examples()]
    for name, content in made:
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Turn the links of a page in docs/ to pages of the site.

    In a search, pages for users come before the reference and the reports.
    """
    if page.file.src_uri.startswith(("reference/", "results/")):
        page.meta["search"] = {"boost": 0.1}
    if page.file.generated_by:
        return markdown
    return turned(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def turned(markdown: str, source: str, place: str) -> str:
    """Return a text whose links lead to the site's pages.

    Args:
        markdown: The text of a file of the repository.
        source: The file's path in the repository.
        place: The path of the text's page below the site's root.
    """

    def new(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if re.match(r"https?:|#", target):
            return found[0]
        path, _, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        to = site_page(there)
        if to is None:
            return words
        to, own_anchor = to
        link = posixpath.relpath(to, posixpath.dirname(place) or ".")
        anchor = anchor or own_anchor
        return f"{mark}[{words}]({link}{'#' + anchor if anchor else ''})"

    return LINK.sub(new, markdown)


def site_page(path: str) -> tuple[str, str] | None:
    """Return the page of a file or folder of the repository, and the anchor in it."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path], ""
    if path.startswith("docs/"):
        return path.removeprefix("docs/"), ""
    if path == RESULTS:
        return "results/index.md", ""
    if path.startswith(RESULTS) and path.endswith((".md", ".svg")):
        return f"results/{Path(path).name}", ""
    if path.startswith("examples/"):
        return "examples.md", Path(path).stem
    if path.split("/")[0] != PACKAGE:
        return None
    if path in (PACKAGE, f"{PACKAGE}/__main__.py"):
        return "reference/index.md", ""
    if path.startswith((f"{PACKAGE}/bin", f"{PACKAGE}/recipes/commands")):
        return "commands.md", ""
    if path.endswith(".py"):
        return _reference_page(Path(path).parent), path[:-3].replace("/", ".")
    modules = list((ROOT / path).glob("[!_]*.py"))
    return (_reference_page(Path(path)), "") if modules else ("reference/index.md", "")


def root_pages() -> Iterator[tuple[str, str]]:
    """Yield the texts of the repository's root."""
    for name, place in ROOT_PAGES.items():
        yield place, turned((ROOT / name).read_text(), name, place)


def results() -> Iterator[tuple[str, str]]:
    """Yield the reports of the benchmarks, a list of them, and their drawings."""
    lines = ["# Reports of the benchmarks", ""]
    for path in sorted((ROOT / RESULTS).rglob("*.md")):
        text = turned(path.read_text(), str(path.relative_to(ROOT)), "results/x.md")
        yield f"results/{path.name}", f"# {path.stem}\n\n{text}"
        lines.append(f"- [{path.stem}]({path.name})")
    yield "results/index.md", "\n".join(lines) + "\n"
    for path in sorted((ROOT / RESULTS).glob("*.svg")):
        yield f"results/{path.name}", path.read_text()


def reference() -> Iterator[tuple[str, str]]:
    """Yield a page for each folder of the package, and a list of them."""
    lines = [
        "# API reference",
        "",
        "What a user imports is in the first page; the others are for who reads or "
        "changes the package. [How it works](../how_it_works.md) has a map of it.",
        "",
    ]
    for folder in sorted({path.parent for path in (ROOT / PACKAGE).rglob("*.py")}):
        inside = folder.relative_to(ROOT)
        modules = sorted(path.stem for path in folder.glob("*.py"))
        public = [name for name in modules if not name.startswith("_")]
        if not public or inside.name in ("bin", "commands"):
            continue
        name = str(inside).replace("/", ".")
        text = [f"# {name}", ""]
        for each in [name, *(f"{name}.{module}" for module in public)]:
            # Names that a package only imports from its modules are shown there.
            members = ["      members: false"] if each == name else []
            text += [
                f"::: {each}",
                *(["    options:", *members] if members else []),
                "",
            ]
        page = _reference_page(inside)
        yield page, "\n".join(text)
        lines.append(f"- [{name}]({posixpath.basename(page)})")
    yield "reference/index.md", "\n".join(lines) + "\n"


def commands() -> Iterator[tuple[str, str]]:
    """Yield the page of the commands with their options."""
    os.environ["COLUMNS"] = "88"  # argparse breaks lines by it.
    text = ["# Commands", "", "`distopt NAME ...` runs a command.", ""]
    for group, members in commands_of().items():
        text += [f"## To {group}", ""]
        for name, (place, function) in members:
            if name in OPTIONS_OF_ESPNET:
                source = ROOT / place.replace(".", "/")
                tree = ast.parse(source.with_suffix(".py").read_text())
                said = ast.get_docstring(tree) or ""
            else:
                module = importlib.import_module(place)
                maker = function.removesuffix("_command") + "_parser"
                maker = "get_parser" if function == "main" else maker
                parser = getattr(module, maker)()
                parser.prog = f"distopt {name}"
                said = parser.format_help().rstrip()
            text += [f"### distopt {name}", "", "```text", said, "```", ""]
    yield "commands.md", "\n".join(text)


def examples() -> tuple[str, str]:
    """Return the page of the examples, with their source."""
    text = ["# Examples", ""]
    languages = {".py": "python", ".yaml": "yaml"}
    for path in sorted((ROOT / "examples").iterdir()):
        if path.suffix not in languages:
            continue
        text += [
            f"## {path.stem}",
            "",
            f"```{languages[path.suffix]}",
            path.read_text().rstrip(),
            "```",
            "",
        ]
    return "examples.md", "\n".join(text)


def _reference_page(folder: Path) -> str:
    return f"reference/{str(folder).replace('/', '.')}.md"
