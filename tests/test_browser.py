"""The browser of the tests says what is wrong with a page."""

from pathlib import Path

from playwright.sync_api import Browser

from tests.browser import faults


def page(folder: Path, body: str) -> Path:
    path = folder / "page.html"
    path.write_text(f'<meta name="viewport" content="width=device-width">{body}')
    return path


def test_a_whole_page_has_no_fault(tmp_path: Path, browser: Browser) -> None:
    assert faults(browser, [page(tmp_path, "<p>words</p>")]) == []


def test_each_fault_is_named(tmp_path: Path, browser: Browser) -> None:
    wide = page(tmp_path, '<div style="width: 500px">x</div>')
    assert faults(browser, [wide]) == [
        "page.html: 118 pixels wider than a window of 390"
    ]
    broken = page(tmp_path, '<img src="nowhere.png">')
    assert faults(browser, [broken]) == [
        f"page.html: {(tmp_path / 'nowhere.png').as_uri()} does not load"
    ]
    failing = page(tmp_path, "<script>nothing()</script>")
    assert faults(browser, [failing]) == ["page.html: nothing is not defined"]
    foreign = page(tmp_path, '<script src="http://127.0.0.1:1/x.js"></script>')
    assert faults(browser, [foreign]) == ["page.html: asks for http://127.0.0.1:1/x.js"]
