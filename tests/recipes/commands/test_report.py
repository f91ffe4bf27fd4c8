"""The page about trainings: what is on it, that it is whole, and when it is refused."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from espnet_distopt.recipes.commands.report import main
from espnet_distopt.recipes.scoring.counts import Counts
from espnet_distopt.recipes.scoring.result import Result
from espnet_distopt.recipes.scoring.worst import WorstLine, write_worst
from tests.browser import faults
from tests.monitoring.written import line, pair, step, write


def trained(directory: Path, **configuration: object) -> Path:
    lines = pair(
        line("begin", 0), step(30, 15), line("epoch", 20, epoch=3, valid_loss=3.25)
    )
    write(directory, *lines)
    text = "".join(f"{name}: {value}\n" for name, value in configuration.items())
    (directory / "config.yaml").write_text(text)
    return directory


def scored(directory: Path) -> Path:
    counts = Counts(
        sentences=8,
        words=20,
        correct=16,
        substitutions=1,
        deletions=3,
        insertions=1,
        sentence_errors=4,
    )
    place = directory / "decode" / "test" / "score_wer"
    place.mkdir(parents=True)
    Result("sclite 2.10", {"all": counts}, {"all": (19.5, 31.2)}).write(place)
    return directory


def written(tmp_path: Path, *experiments: Path) -> str:
    out = tmp_path / "report.html"
    main([*map(str, experiments), "-o", str(out)])
    return out.read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Finds elements that are not closed, or closed in the wrong order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "path", "use", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "path", "use", "br"):
            assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    text = written(tmp_path, scored(trained(tmp_path / "asr_adpsgd_2", lr=0.1)))
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    assert text.count("<svg") == 2
    assert not re.search(r"(?:src|href)=[\"'](?!#)", text)
    assert "url(http" not in text


def test_a_browser_shows_the_page_whole(tmp_path: Path, browser: Browser) -> None:
    experiment = scored(trained(tmp_path / "asr_adpsgd_2", lr=0.1, note="long " * 50))
    line = WorstLine("u1", 20, 20, "words " * 40, "")
    write_worst(experiment / "decode" / "test" / "score_wer", [line])
    written(tmp_path, experiment)
    assert not faults(browser, [tmp_path / "report.html"])


def test_the_page_has_states_figures_and_error_rates(tmp_path: Path) -> None:
    text = written(
        tmp_path, scored(trained(tmp_path / "a", lr=0.1)), trained(tmp_path / "b")
    )
    words = re.sub(r"<[^>]+>", " ", text)
    assert re.search(r"a\s+adpsgd\s+finished\s+2\s+3 of 3\s+2.5\s+3.25", words)
    assert "25.0 (19.5-31.2)" in words
    assert "by a bootstrap over the speakers" in words
    assert "lr: 0.1" in words
    assert "Worst lines" not in words


def test_only_what_differs_stands_in_the_table_of_options(tmp_path: Path) -> None:
    one = trained(tmp_path / "a", lr=0.1, seed=7)
    other = trained(tmp_path / "b", lr=0.2, seed=7)
    text = written(tmp_path, one, other)
    assert re.search(r"<td[^>]*>lr</td><td[^>]*>0.1</td><td[^>]*>0.2</td>", text)
    assert not re.search(r"<td[^>]*>seed</td>", text)
    assert text.count("seed: 7") == 2


def test_equal_names_are_told_apart(tmp_path: Path) -> None:
    one = scored(trained(tmp_path / "exp" / "a", lr=0.1))
    other = scored(trained(tmp_path / "old" / "a", lr=0.2))
    text = written(tmp_path, one, other)
    for name in ("exp/a", "old/a"):
        # In the tables of trainings, rates, counts and options, in the legend of the
        # losses, over the pictures, and over the configuration.
        assert text.count(f">{name}<") == 7
    assert re.search(r"<td[^>]*>lr</td><td[^>]*>0.1</td><td[^>]*>0.2</td>", text)


def test_names_are_not_taken_for_markup(tmp_path: Path) -> None:
    text = written(tmp_path, trained(tmp_path / "a<b>&c", note="'<script>'"))
    assert "<script>" not in text
    assert "a&lt;b&gt;&amp;c" in text


def test_the_worst_lines_of_each_set_at_most_ten(tmp_path: Path) -> None:
    experiment = scored(tmp_path / "a")
    lines = [WorstLine(f"u{n:02}", 20 - n, 20, "<b> & co", "") for n in range(12)]
    write_worst(experiment / "decode" / "test" / "score_wer", lines)
    text = written(tmp_path, experiment, scored(tmp_path / "b"))
    balance = Balance()
    balance.feed(text)
    assert not balance.open
    section = text.partition("<h2>Worst lines</h2>")[2].partition("<h2>")[0]
    assert "<b>" not in section
    assert section.count("&lt;b&gt; &amp; co") == 10
    assert re.findall(r"<h3>(.*?)</h3>", section) == ["a: test"]
    words = re.sub(r"<[^>]+>", " ", section)
    assert re.search(r"u00\s+20 of 20\s.*u09\s+11 of 20\s", words, re.DOTALL)


def test_what_is_no_training_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "stats").mkdir()
    written(tmp_path, tmp_path / "stats", trained(tmp_path / "a"))
    assert capsys.readouterr().err == f"{tmp_path}/stats: no training, left out\n"


def test_a_stock_training_has_scores_alone(tmp_path: Path) -> None:
    text = written(tmp_path, scored(tmp_path / "asr_none_1"))
    assert "<svg" not in text
    assert "asr_none_1" in text


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("nothing there", "no such experiment directory"),
        ("empty", "train or score first"),
        ("learner", "learner0.jsonl:4: not a line of a learner"),
        ("configuration", "config.yaml"),
        ("worst", "worst.json: not the worst lines of a set"),
    ],
)
def test_a_refusal_writes_nothing(
    damage: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "a"
    if damage == "empty":
        directory.mkdir()
    elif damage != "nothing there":
        trained(directory)
    if damage == "learner":
        with (directory / "distopt" / "learner0.jsonl").open("a") as file:
            file.write("[1]\n")
    elif damage == "worst":
        scored(directory)
        (directory / "decode/test/score_wer/worst.json").write_text('[{"id": 1}]')
    elif damage == "configuration":
        (directory / "config.yaml").write_text("a: [")
    with pytest.raises(SystemExit) as ended:
        written(tmp_path, directory)
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert said in error
    assert not (tmp_path / "report.html").exists()


def test_a_folder_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(trained(tmp_path / "a")), "-o", str(tmp_path / "no" / "r.html")])
    assert "cannot be written: No such file" in capsys.readouterr().err
