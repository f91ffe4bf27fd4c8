import pytest

from espnet_distopt.data.hub5 import (
    Reference,
    Span,
    mend_stm,
    read_pem,
    read_stm,
    reference_words,
    write_pem,
    write_stm,
)
from espnet_distopt.data.mini_hub5 import glm_text, reference_text
from espnet_distopt.errors import InputError

SPAN = Span("en_4156", "A", 301.85, 302.48)


def test_ids_are_kaldis():
    assert SPAN.side == "en_4156-A"
    assert SPAN.utterance == "en_4156-A_030185-030248"


def test_pem_and_stm_are_read_back(tmp_path):
    write_pem(tmp_path / "pem", [SPAN])
    assert (tmp_path / "pem").read_text() == "en_4156 A en_4156_A 301.85 302.48\n"
    assert read_pem(tmp_path / "pem") == [SPAN]
    references = [Reference(SPAN, "O,CHE", "oh (%HESITATION) yeah")]
    write_stm(tmp_path / "stm", ';; LABEL "CHE" "CallHome" ""\n', references)
    assert read_stm(tmp_path / "stm") == references


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("en_4156 A en_4156_A 1.0", ":2: expected 'file channel"),
        ("en_4156 A en_4156_A one 2.0", ":2: expected start and end in seconds"),
        ("en_4156 3 en_4156_A 1.0 2.0", ":2: expected channel A or B, got 3"),
        ("en_4156 A en_4156_A 2.0 1.0", ":2: expected 0 <= start < end, got 2.0 1.0"),
        ("en_4156 A en_4156_A nan nan", ":2: expected 0 <= start < end"),
    ],
)
@pytest.mark.parametrize("read", [read_pem, read_stm])
def test_bad_lines_are_named(tmp_path, read, line, message):
    (tmp_path / "file").write_text(f";; comment\n{line}\n")
    with pytest.raises(InputError, match=message):
        read(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(%HESITATION) Oh Yeah", "oh yeah"),
        ("(th-) that's ((it))", "th- that's it"),
        ("<B_ASIDE> wait <E_ASIDE>", "wait"),
        ("{ uh-huh / um-hum } right", "uh-huh right"),
        ("{ we are / we're / @ } here", "we are here"),
        ("no { @ / of }", "no"),
        ("IGNORE_TIME_SEGMENT_IN_SCORING", ""),
        ("", ""),
    ],
)
def test_reference_words(text, words):
    assert reference_words(text) == words.split()


def test_stm_is_mended_in_its_lines_only():
    stm = ";; ((kept)) <B_ASIDE>\na A a_A 1 2 <O> ((hm) <B_ASIDE> so <E_ASIDE>\n"
    assert mend_stm(stm) == ";; ((kept)) <B_ASIDE>\na A a_A 1 2 <O> (hm) so\n"


def test_synthetic_references_have_optional_words():
    assert (
        reference_text("[noise] um [laughter-hi] th[at]- hm that's it")
        == "(%HESITATION) hi (th-) (%HESITATION) that's it"
    )


def test_glm_says_that_case_does_not_matter():
    """Without this header line hubscr applies no rule at all, and returns 0."""
    assert "* case_sensitive = 'F'\n" in glm_text()
    assert "i'm => { i'm / i am } / [ ] __ [ ]\n" in glm_text()
