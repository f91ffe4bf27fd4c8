"""The documentation site builds without a warning, has no dead link, and is whole."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Browser

from tests.browser import faults

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.timeout(900)


class PageReader(HTMLParser):
    """Collects what a page links to or loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value for name, value in attrs if value is not None}
        self.anchors |= {known[name] for name in ("id", "name") if name in known}
        if tag == "a" and "href" in known:
            self.links.add(known["href"])
        elif tag in ("img", "script", "iframe") and "src" in known:
            self.loads.add(known["src"])
        elif tag == "link" and known.get("rel") in ("stylesheet", "icon"):
            self.loads.add(known["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, PageReader]:
    """Build the site, and read its pages."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {}
    for path in folder.rglob("*.html"):
        pages[path] = PageReader()
        pages[path].feed(path.read_text())
    return pages


def test_no_link_is_dead(site: dict[Path, PageReader]) -> None:
    dead = []
    followed = 0
    for path, page in site.items():
        if path.name == "404.html":
            continue  # Its links begin at the root of a server.
        for link in page.links | page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not parts.path:
                target = path
            if not target.exists():
                dead.append(f"{path.name}: {link}")
            elif parts.fragment and target in site:
                wanted = unquote(parts.fragment)
                if wanted not in site[target].anchors:
                    dead.append(f"{path.name}: {link}: no such place there")
    assert not dead, "\n".join(sorted(dead)[:20])
    assert followed > 1000


def test_pages_load_nothing_from_other_hosts(site: dict[Path, PageReader]) -> None:
    foreign = {each for page in site.values() for each in page.loads if "//" in each}
    assert not foreign


def test_the_reference_has_all_modules_and_what_users_import(
    site: dict[Path, PageReader],
) -> None:
    anchors = {each for page in site.values() for each in page.anchors}
    modules = {
        str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
        for path in (ROOT / "espnet_distopt").rglob("[!_]*.py")
        if not {"bin", "commands"} & {*path.parts}  # They have a page of their own.
    }
    assert len(modules) > 200
    assert modules <= anchors
    users = {
        "session.session.Session.step",
        "work_queue.WorkQueue",
        "errors.InputError",
    }
    assert {f"espnet_distopt.{name}" for name in users} <= anchors


def test_every_page_of_the_repository_is_in_the_site(
    site: dict[Path, PageReader],
) -> None:
    names = {path.stem for path in site}
    for path in (ROOT / "docs").rglob("*.md"):
        assert path.stem in names or path.stem == "README", path
    nav = (ROOT / "mkdocs.yml").read_text().partition("nav:")[2]
    for path in (ROOT / "docs").rglob("*.md"):
        assert str(path.relative_to(ROOT / "docs")) in nav, f"{path} is not in the menu"


def test_examples_are_shown_as_code(site: dict[Path, PageReader]) -> None:
    (path,) = (each for each in site if each.name == "espnet_distopt.monitoring.html")
    text = path.read_text()
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    assert "```" not in text


@pytest.mark.thorough
def test_a_browser_shows_every_page_whole(
    site: dict[Path, PageReader], browser: Browser
) -> None:
    paths = sorted(path for path in site if path.name != "404.html")
    assert len(paths) > 50
    assert not faults(browser, paths)
