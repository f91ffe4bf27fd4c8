"""Character and word errors of lines: known counts, halves, intervals, bad input."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.files.tables import write_table
from espnet_distopt.recipes.commands.scoring import score_lines_command as main
from espnet_distopt.recipes.commands.scoring import wer_report_command as report
from espnet_distopt.recipes.scoring.counts import Draws
from espnet_distopt.recipes.scoring.result import Result, score_lines
from espnet_distopt.recipes.scoring.scorers import Jiwer
from tests.recipes.scoring.line_sets import HYP, REF
from tests.refusal import Refused

HALVES = ["--half", "known=-known-", "--half", "digits=-digits-"]


def score(root: Path, ref: str | None, hyp: str | None, *options: str) -> Path:
    for name, text, table in (("ref", ref, REF), ("hyp", hyp, HYP)):
        if text is None:
            write_table(root / name, table)
        else:
            (root / name).write_text(text, encoding="utf-8")
    out = root / "decode" / "test"
    arguments = ["--ref", str(root / "ref"), "--hyp", str(root / "hyp")]
    main([*arguments, "--out", str(out), *options])
    return out


def counted(out: Path, kind: str, half: str) -> list[int]:
    content = json.loads((out / f"score_{kind}" / "result.json").read_text())
    values = content["halves"][half]
    names = ("sentences", "words", "correct", "substitutions", "deletions")
    return [values[name] for name in (*names, "insertions", "sentence_errors")]


def test_known_counts(tmp_path: Path) -> None:
    out = score(tmp_path, None, None, *HALVES)
    assert counted(out, "cer", "known") == [2, 24, 18, 0, 6, 1, 2]
    assert counted(out, "cer", "digits") == [2, 6, 5, 1, 0, 0, 1]
    assert counted(out, "cer", "all") == [4, 30, 23, 1, 6, 1, 3]
    assert counted(out, "wer", "known") == [2, 5, 2, 2, 1, 0, 2]
    assert counted(out, "wer", "digits") == [2, 2, 1, 1, 0, 0, 1]
    assert counted(out, "wer", "all") == [4, 7, 3, 3, 1, 0, 3]
    result = Result.read(out / "score_cer" / "result.json")
    assert (result.measure, result.unit) == ("CER", "characters")
    # Of the counts: a mean of the lines' rates would be 34 %.
    assert result.halves["all"].error_rate == pytest.approx(100 * 8 / 30)
    text = (out / "score_cer" / "result.txt").read_text()
    assert "percent of the reference characters" in text and " Chr " in text
    assert " Wrd " in (out / "score_wer" / "result.txt").read_text()


def test_intervals_are_over_the_writers(tmp_path: Path) -> None:
    writers = tmp_path / "utt2spk"
    write_table(writers, {line: line.split("-")[0] for line in REF})
    out = score(tmp_path, None, None, *HALVES, "--utt2spk", str(writers))
    result = Result.read(out / "score_cer" / "result.json")
    assert set(result.intervals) == {"digits", "all"}  # one writer only is in known
    low, high = result.intervals["digits"]
    assert (low, high) == (0.0, 25.0)  # Bob's rate and Cyd's
    by_line = Result.read(
        score(tmp_path, None, None, *HALVES) / "score_cer" / "result.json"
    )
    assert set(by_line.intervals) == {"known", "digits", "all"}
    assert result.draws == Draws("writers or fonts", {"digits": 2, "all": 3})
    assert by_line.draws == Draws("lines", {"known": 2, "digits": 2, "all": 4})


def test_lines_without_a_writer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writers = tmp_path / "utt2spk"
    write_table(writers, {line: line.split("-")[0] for line in list(REF)[:3]})
    score(tmp_path, None, None, "--utt2spk", str(writers))
    assert capsys.readouterr().err == (
        f"warning: {writers}: 1 of 4 utterances have no speaker, the first is "
        "cyd-digits-1: each counts as a speaker of its own\n"
    )
    write_table(writers, {line: line.split("-")[0] for line in REF})
    score(tmp_path, None, None, "--utt2spk", str(writers))
    assert capsys.readouterr().err == ""


def test_text_is_composed_and_blanks_are_single(tmp_path: Path) -> None:
    out = score(tmp_path, "a caf\u00e9 au  lait\n", "a cafe\u0301 au\tlait \n")
    assert counted(out, "cer", "all") == [1, 12, 12, 0, 0, 0, 0]


def test_one_table_of_character_and_word_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ocr_none_1", "ocr_adpsgd_2"):
        (tmp_path / name).mkdir()
        score(tmp_path / name, None, None, *HALVES)
    capsys.readouterr()
    report([str(tmp_path / "ocr_none_1"), str(tmp_path / "ocr_adpsgd_2")])
    text = capsys.readouterr().out
    halves = ("known", "digits", "all")
    columns = [f"{m} {half} (jiwer)" for m in ("CER", "WER") for half in halves]
    assert f"| training time | {' | '.join(columns)} |" in text
    assert text.count("| ocr_none_1 | - | - | - | - |") == 1
    assert f"## Counts (percent): jiwer {version('jiwer')}, characters\n" in text
    assert f"## Counts (percent): jiwer {version('jiwer')}\n" in text
    assert "by a bootstrap over 2 to 4 lines." in text


WORDS = st.lists(st.text("abc", min_size=1, max_size=3), max_size=4)


@given(ref=WORDS.filter(bool), hyp=WORDS)
def test_counts_agree_with_the_distance(ref: list[str], hyp: list[str]) -> None:
    counts = Jiwer(characters=True).count({"u": ref}, {"u": hyp})
    one, two = " ".join(ref), " ".join(hyp)
    assert counts.errors == distance(one, two)
    assert counts.words == len(one)
    assert counts.correct + counts.substitutions + counts.insertions == len(two)


def distance(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, start=1):
        above, row[0] = row[0], i
        for j, b in enumerate(two, start=1):
            above, row[j] = row[j], min(above + (a != b), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def test_halves_add_up() -> None:
    ref = {f"{part}-{n}": ["abc"] * n for part in "xy" for n in range(1, 4)}
    hyp = {line: ["abd", *words[1:]] for line, words in ref.items()}
    for result in score_lines(ref, hyp, {}, {"x": "^x", "y": "^y"}):
        halves = result.halves
        assert halves["x"].errors + halves["y"].errors == halves["all"].errors == 6
        assert list(halves) == ["x", "y", "all"]


GOOD = "".join(f"{line} {text}\n" for line, text in REF.items())
BAD = {
    "missing hypothesis": (None, "ann-known-1 the\n", (), "3 of 4 utterances of"),
    "hypothesis too many": (None, GOOD + "zoe-1 x\n", (), "have no reference"),
    "empty reference": ("u\n", "u a\n", (), "ref: 1 lines have no text to score aga"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(tmp_path: Path, refused: Refused, name: str) -> None:
    ref, hyp, options, message = BAD[name]
    out = score(tmp_path, None, None)
    assert message in refused(score, tmp_path, ref, hyp, *options)
    assert not list(out.glob("*/*"))
