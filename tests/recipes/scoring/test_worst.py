"""The worst lines of a set: which are chosen, and what scoring keeps of them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from espnet_distopt.recipes.commands.scoring import score_command as score
from espnet_distopt.recipes.commands.scoring import score_hub5_command as score_hub5
from espnet_distopt.recipes.commands.scoring import score_lines_command as score_lines
from espnet_distopt.recipes.scoring.scorers import Jiwer
from espnet_distopt.recipes.scoring.worst import (
    MOST,
    WorstLine,
    read_worst,
    worst_lines,
)
from tests.recipes.scoring.known_counts import write_task

REF = "a one two three\nb four\nc five six\nd seven\n"
HYP = "a one three\nb\nc five six\nd the heaven\n"


def files(root: Path) -> list[str]:
    (root / "ref").write_text(REF)
    (root / "hyp").write_text(HYP)
    out = ["--out", str(root / "out")]
    return ["--ref", str(root / "ref"), "--hyp", str(root / "hyp"), *out]


def test_the_worst_words_come_first(tmp_path: Path) -> None:
    score([*files(tmp_path), "--scorer", "jiwer"])
    assert read_worst(tmp_path / "out") == [
        WorstLine("d", 2, 1, "seven", "the heaven"),
        WorstLine("a", 1, 3, "one two three", "one three"),
        WorstLine("b", 1, 1, "four", ""),
    ]


def test_characters_of_lines_are_counted(tmp_path: Path) -> None:
    score_lines(files(tmp_path))
    assert [
        (line.id, line.errors, line.length)
        for line in read_worst(tmp_path / "out" / "score_cer")
    ] == [("d", 6, 5), ("a", 4, 13), ("b", 4, 4)]


def test_segments_of_conversations(tmp_path: Path) -> None:
    arguments = write_task(tmp_path)
    score_hub5([*arguments, "--out", str(tmp_path / "out"), "--scorer", "jiwer"])
    lines = read_worst(tmp_path / "out")
    assert 0 < len(lines) <= MOST
    assert all(line.errors > 0 and line.ref != line.hyp for line in lines)
    assert lines == sorted(lines, key=lambda line: (-line.errors, line.id))


def test_a_failed_scoring_leaves_no_earlier_lines(tmp_path: Path) -> None:
    arguments = files(tmp_path)
    for main, place in ((score, "out"), (score_lines, "out/score_cer")):
        (tmp_path / "hyp").write_text(HYP)
        main(arguments)
        assert read_worst(tmp_path / place)
        (tmp_path / "hyp").write_text("a one\n")
        with pytest.raises(SystemExit):
            main(arguments)
        assert read_worst(tmp_path / place) == []


def test_most_are_kept() -> None:
    ref = {f"u{n:02}": ["x"] * n for n in range(1, 30)}
    lines = worst_lines(ref, {name: [] for name in ref})
    assert [line.errors for line in lines] == list(range(29, 29 - MOST, -1))


WORDS = st.lists(st.sampled_from("abc"), max_size=6)


@settings(max_examples=50, deadline=None)
@given(WORDS, WORDS, st.booleans())
def test_errors_are_those_of_the_scorer(
    right: list[str], found: list[str], characters: bool
) -> None:
    ref, hyp = {"u": right or ["a"]}, {"u": found}
    counts = Jiwer(characters).count(ref, hyp)
    lines = worst_lines(ref, hyp, characters=characters)
    assert sum(line.errors for line in lines) == counts.errors
    assert all(line.length == counts.words for line in lines)
