import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from espnet_distopt.recipes.corpora.hub5.stm import (
    Reference,
    Span,
    mend_stm,
    read_stm,
    reference_words,
    write_stm,
)
from tests.refusal import refuses

SPAN = Span("en_4156", "A", 301.85, 302.48)


def test_ids_are_kaldis():
    assert SPAN.side == "en_4156-A"
    assert SPAN.utterance == "en_4156-A_030185-030248"


def test_ids_are_cut_off_as_awk_does():
    """In binary, 100 times 8.78 is a little less than 878."""
    assert Span("a", "B", 1.0, 8.78).utterance == "a-B_000100-000877"


def test_stm_is_read_back(tmp_path):
    references = [
        Reference(SPAN, "O,CHE", "oh (%HESITATION) yeah"),
        Reference(Span("en_4156", "B", 1.0, 2.0), "", "no labels"),
        Reference(Span("en_4156", "B", 3.125, 4.0), "O,en,F,en-F", ""),
    ]
    write_stm(tmp_path / "stm", ';; LABEL "CHE" "CallHome" ""\n', references)
    lines = (tmp_path / "stm").read_text().splitlines()
    assert lines[1].startswith("en_4156 A en_4156_A 301.85 302.48 <O,CHE> oh ")
    assert read_stm(tmp_path / "stm") == references
    assert read_stm(tmp_path / "stm")[0].span.where == f"{tmp_path}/stm:2"


def test_channels_are_letters_in_any_case_or_numbers(tmp_path):
    (tmp_path / "file").write_text("a a s 1 2\na B s 1 2\nb 1 s 1 2\n")
    spans = [each.span for each in read_stm(tmp_path / "file")]
    assert [span.side for span in spans] == ["a-A", "a-B", "b-1"]


BAD_LINES = {
    "too_few_fields": ("a A a_A 1.0", "expected 'file channel speaker start end'"),
    "start": ("a A a_A one 2.0", "expected start and end in seconds"),
    "channel": ("a AB a_A 1.0 2.0", "expected a channel such as A or B, got AB"),
    "backwards": ("a A a_A 2.0 1.0", "expected 0 <= start < end, got 2.0 1.0"),
    "no_length": ("a A a_A 2.0 2.0", "expected 0 <= start < end, got 2.0 2.0"),
    "negative": ("a A a_A -1.0 2.0", "expected 0 <= start < end"),
    "no_number": ("a A a_A nan nan", "expected 0 <= start < end"),
    "twice": ("a A a_A 9.00 12.00", "a-A_000900-001200 is at .*:2 too"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_bad_lines(tmp_path, kind):
    line, message = BAD_LINES[kind]
    text = f";; comment\na A a_A 9.00 12.00\na B a_B 9.00 12.00\n\n{line}\n"
    refuses(read_stm, tmp_path / "file", text, f"file:5: {message}")


@pytest.mark.parametrize("times", ["11.00 13.00", "11.80 11.90"])
def test_overlaps_are_told(tmp_path, times):
    lines = [f"{file} A s {each}\n" for file in "ab" for each in ("9.00 12.00", times)]
    (tmp_path / "file").write_text("".join(lines))
    told = []
    assert len(read_stm(tmp_path / "file", told.append)) == 4
    [warning] = told
    assert "file:2: starts at 11." in warning and "(2 such segments)" in warning


BAD_FILES = {
    "missing": (None, "file: no such file"),
    "empty": (b"", "file: empty"),
    "comments": (b";; only\n\n", "file: has comments only"),
    "latin1": (b";; x\na A a_A 1 2 caf\xe9\n", "file:2: expected UTF-8 .* iconv"),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path, kind):
    content, message = BAD_FILES[kind]
    refuses(read_stm, tmp_path / "file", content, message)


BAD_TEXTS = {
    "open_label": ("<O,SWB oh", "expected labels like <O,SWB>, got <O,SWB"),
    "empty_label": ("<> oh", "expected labels like <O,SWB>, got <>"),
    "open_bracket": ("<O> oh (um", r"brackets \( \) that don't pair"),
    "closing_bracket": ("<O> oh um)", r"brackets \( \) that don't pair"),
    "empty_brackets": ("<O> oh ()", r"brackets \( \) that don't pair"),
    "braces_in_brackets": ("<O> (a { b / c })", "braces within brackets"),
    "no_blank": ("<O> {we are / we }", "expected blanks around braces, .* '{we'"),
    "open_brace": ("<O> { we / are", "'{' without '}'"),
    "closing_brace": ("<O> we } are", "'}' without '{'"),
    "slash": ("<O> we / are", "'/' without '{'"),
    "empty_alternative": ("<O> { we / } are", "an empty alternative; write '@'"),
}


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_bad_texts(tmp_path, kind):
    text, message = BAD_TEXTS[kind]
    line = f"a A a_A 1.0 2.0 {text}\n"
    refuses(read_stm, tmp_path / "stm", line, f"stm:1: .*{message}")


@pytest.mark.parametrize(
    "text",
    [
        "(%HESITATION) (uh huh) th- I. B. M.",
        "{ a / b c / @ } d { { a / b } c / d }",
        "IGNORE_TIME_SEGMENT_IN_SCORING",
        "",
    ],
)
def test_right_texts(tmp_path, text):
    (tmp_path / "stm").write_text(f"a A a_A 1.0 2.0 <O,en,F,en-F>  {text}\n")
    [reference] = read_stm(tmp_path / "stm")
    assert (reference.labels, reference.text) == ("O,en,F,en-F", text)


def test_rounded_ends_may_run_into_the_next_segment(tmp_path):
    spans = [Span("a", "A", 1.0, 2.3), Span("a", "A", 2.0, 3.0)]
    write_stm(tmp_path / "stm", "", [Reference(span, "", "oh") for span in spans])
    told = []
    assert [each.span for each in read_stm(tmp_path / "stm", told.append)] == spans
    assert not told


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(%HESITATION) Oh Yeah", "oh yeah"),
        ("(th-) that's ((it))", "th- that's it"),
        ("<B_ASIDE> wait <E_ASIDE>", "wait"),
        ("{ uh-huh / um-hum } right", "uh-huh right"),
        ("{ we are / we're / @ } here", "we are here"),
        ("no { @ / of }", "no"),
        ("my P. H. D.", "my p h d"),
        ("I. B. M.'s (T. V.)", "i b m's t v"),
        ("i._b._m.", "i b m"),
        ("IGNORE_TIME_SEGMENT_IN_SCORING", ""),
        ("", ""),
    ],
)
def test_reference_words(text, words):
    assert reference_words(text) == words.split()


def test_stm_is_mended_in_its_lines_only():
    stm = ";; ((kept)) <B_ASIDE>\na A a_A 1 2 <O> ((hm) <B_ASIDE> so <E_ASIDE>\n"
    assert mend_stm(stm) == ";; ((kept)) <B_ASIDE>\na A a_A 1 2 <O> (hm) so\n"


def kaldis_repair(line: str) -> str:
    """What its script does to a line; blanks that it leaves don't matter."""
    line = line.replace("((", "(", 1)
    return re.sub("<[BE]_ASIDE>", "", line)


@given(st.lists(st.sampled_from(["a", "(b)", "<B_ASIDE>", "<E_ASIDE>", "( c )"])))
def test_mending_does_what_kaldi_does(words):
    line = "a A a_A 1 2 <O> " + " ".join(["((d)", *words])
    assert mend_stm(line).split() == kaldis_repair(line).split()
