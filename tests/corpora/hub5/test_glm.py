import os
import shutil
import subprocess
from pathlib import Path

import pytest

from espnet_distopt.corpora.hub5.glm import check_glm
from espnet_distopt.corpora.mini_swbd.hub5 import glm_text
from espnet_distopt.errors import InputError

HEADER = """\
;;  File: made_up.glm
;;
* name "made_up.glm"
* desc "rules of every form that NIST's files have"
* format = 'NIST1'
* max_nrules = '100'
* copy_no_hit = 'T'
* case_sensitive = 'F'

"""
RULES = """\
UH-HUH  =>  %BCACK     / [ ] __ [ ] ;; a token
%UM     =>  %HESITATION     / [ ] __ [ ]
'CAUSE           => BECAUSE ;; says a dictionary
ADVISER          => ADVISOR / [ ] __  ;; "one' side only
BINYAMIN         => BENJAMIN / __ [ NETANYAHU]
[CANNOT ]        => [CAN NOT ]
OK               => O. K. / [ ] __ [ ] \t
PLAYOFF          => PLAY OFF ;; w/ or w/o a hyphen, says ___
T.               => TEE / __ [ SHIRT] ;; with hyphen
VINCENTS         => VINCENT'S / [SAINT ] __  ;; a name
[UNITED STATES'] => UNITED STATES / __ [ ]
backyard      =>  back yard      / [ ] __ [ ]
WORD             =>
we're => { we are / we're / @ } / [ ] __ [ ]

;;not-a-rule XYZ => a line of comment
;; INPUT_DEPENDENT_APPLICATION = "ctm"
[HE'S] => [{HE IS / HE HAS}] / [ ] __ [ ]
[B.'S] => [{B.'S / B. IS / B. HAS }] / [ ] __ [ ]
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "rules.glm"
    path.write_text(text, encoding="utf-8")
    return path


def warnings(path: Path) -> list[str]:
    lines: list[str] = []
    check_glm(path, lines.append)
    return lines


@pytest.mark.parametrize("text", [HEADER + RULES, glm_text()])
def test_rules_of_every_form_are_right(tmp_path, text):
    assert warnings(write(tmp_path, text)) == []


@pytest.mark.parametrize(
    "text",
    [
        ";; upper case needs no case_sensitive\n AD WEEK => ADWEEK\n",
        "; one sign is enough\n;; for two\nA => B ; x\n* desc 'none'\n"[:-15],
        HEADER.replace("'F'", "'No'") + "a => b\r\n",
    ],
)
def test_a_header_may_leave_to_csrfilt_what_it_does_anyway(tmp_path, text):
    assert warnings(write(tmp_path, text)) == []


def test_comments_may_be_of_any_coding(tmp_path):
    path = tmp_path / "rules.glm"
    path.write_bytes(HEADER.encode() + b"CAFE => COFFEE ;; caf\xe9\n")
    assert warnings(path) == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("[W'S] => [{W'S / W IS / W HAS}\n", "blanks around / and __"),
        ("[A'S] => [{A'S / A IS} / [ ] __ [ ]\n", "brackets"),
    ],
)
def test_broken_rules_for_recognised_words_are_told(tmp_path, rule, message):
    """NIST's en20030506.glm has the first one."""
    [warning] = warnings(write(tmp_path, HEADER + RULES + rule))
    assert message in warning
    assert f"rules.glm:{len((HEADER + RULES).splitlines()) + 1}: " in warning


def test_nists_alternatives_without_blanks_are_told(tmp_path):
    """NIST's en20090415.glm has such a rule among those for both sides."""
    rule = "AIN'T => [{ARE NOT / HAVE NOT}] / [ ] __ [ ]\n"
    [warning] = warnings(write(tmp_path, HEADER + rule))
    assert "rules.glm:10: expected blanks around braces" in warning


BAD_HEADERS = {
    "no_comment": ("* name 'x'\n", r":1: expected a comment"),
    "blank_first": ("\n;; x\n", r":1: expected a comment"),
    "joined_sign": (";;x\n", r":1: expected a comment"),
    "byte_order_mark": ("\ufeff;; x\n", r":1: expected a comment"),
    "no_quotes": (";; x\n* case_sensitive = F\n", r":2: expected a value in quotes"),
    "open_quote": (";; x\n* case_sensitive = 'F\n", r":2: expected a value in quotes"),
    "unknown_key": (";; x\n* max_rules = '9'\n", r":2: expected one of NAME, DESC"),
    "late": (";; x\nA => B\n* max_nrules = '9'\n", r":3: the header must come before"),
    "indented": (";; x\n  * case_sensitive = 'F'\n", r":2: expected 'a => b"),
    "indented_comment": (";; x\n  ;; y\n", r":2: expected ;; at the line's start"),
    "format": (";; x\n* format = 'NIST2'\n", r": expected \* format = 'NIST1'"),
    "small_format": (";; x\n* format = 'nist1'\n", r": expected \* format = 'NIST1'"),
    "description": (
        ";; x\n* desc 'rules in this format'\n",
        r": expected \* format = 'NIST1', got 'rules in",
    ),
    "few_rules": (";; x\n* max_nrules = '1'\n", r": expected \* max_nrules = '2' or"),
    "no_number": (";; x\n* max_nrules = 'many'\n", r": expected \* max_nrules = '2'"),
    "lost_words": (";; x\n* copy_no_hit = 'F'\n", r": expected \* copy_no_hit = 'T'"),
    "case": (";; x\num => %HESITATION\n", r":2: needs the header \* case_sensitive"),
    "long_comment": (";; x\n;; " + "y" * 130 + "\n", r":2: expected at most 131"),
    "section": (
        ";; x\n;; INPUT_DEPENDENT_APPLICATION = ctm\n",
        r":2: expected ;; INPUT_DEPENDENT_APPLICATION = \"ctm\"",
    ),
    "pattern": (
        ';; x\n;; INPUT_DEPENDENT_APPLICATION = "("\n',
        r":2: expected a regular expression",
    ),
}


@pytest.mark.parametrize("kind", BAD_HEADERS)
def test_bad_headers(tmp_path, kind):
    text, message = BAD_HEADERS[kind]
    with pytest.raises(InputError, match="rules.glm" + message):
        check_glm(write(tmp_path, text + "A => B\n"))


BAD_RULES = {
    "no_arrow": ("um %HESITATION / [ ] __ [ ]", "expected 'a => b"),
    "no_left_side": (" => x / [ ] __ [ ]", "nothing before =>"),
    "no_blank_after_arrow": ("a =>b / [ ] __ [ ]", "expected a blank after =>"),
    "no_blank_after_slash": ("a => b /[ ] __ [ ]", "expected blanks around /"),
    "no_blank_after_slot": ("a => b / [ ] __[ ]", "expected blanks around /"),
    "no_slot": ("a => b / [ ] [ ]", "expected blanks around / and __"),
    "alternatives_without_context": ("a => { a / b }", "expected blanks around / and"),
    "open_left_bracket": ("[a => b / [ ] __ [ ]", "brackets"),
    "open_right_bracket": ("a => [b / [ ] __ [ ]", "brackets"),
    "open_context": ("a => b / [ __ [ ]", "brackets"),
    "open_brace": ("a => { b / c / [ ] __ [ ]", "braces"),
    "closing_brace": ("a => b / c } / [ ] __ [ ]", "braces"),
    "empty_alternative": ("a => { b / } / [ ] __ [ ]", "an empty alternative"),
    "no_blanks": (
        "we're => {we are / we're} / [ ] __ [ ]",
        "expected blanks around br",
    ),
    "no_blank_at_end": ("a => { b / c} / [ ] __ [ ]", "expected blanks around br"),
}


@pytest.mark.parametrize("kind", BAD_RULES)
def test_bad_rules(tmp_path, kind):
    rule, message = BAD_RULES[kind]
    with pytest.raises(InputError, match=f"rules.glm:10: {message}"):
        check_glm(write(tmp_path, HEADER + rule + "\n"))


def test_a_rule_without_arrow_ends_csrfilt_even_for_recognised_words(tmp_path):
    rule = "[IT'S] [IT IS] / [ ] __ [ ]\n"
    with pytest.raises(InputError, match="expected 'a => b"):
        check_glm(write(tmp_path, HEADER + RULES + rule))


@pytest.mark.parametrize(("text", "message"), [("", "empty"), (HEADER, "no rules")])
def test_files_without_rules(tmp_path, text, message):
    with pytest.raises(InputError, match=f"rules.glm: {message}"):
        check_glm(write(tmp_path, text))
    with pytest.raises(InputError, match="no such file"):
        check_glm(tmp_path / "missing.glm")


def csrfilt(rules: Path, kind: str, text: str) -> str:
    """What SCTK makes of a text that is already upper case, blanks squeezed."""
    if shutil.which("sctk") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("sctk is not installed")
        pytest.skip("sctk is not installed")
    command = ["sctk", "csrfilt", "-i", kind, "-dh", str(rules)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return " ".join(done.stdout.split())


def test_csrfilt_applies_the_rules_that_are_right(tmp_path):
    rules = write(tmp_path, HEADER + RULES)
    said = "UM-X WE'RE OK IN THE BACKYARD UH-HUH"
    filtered = csrfilt(rules, "txt", said)
    assert filtered == "UM X { we are / we're / @ } O. K. IN THE back yard %BCACK"


@pytest.mark.parametrize(
    ("header", "rule"),
    [
        *((HEADER, rule) for rule, _ in list(BAD_RULES.values())[:7]),
        (BAD_HEADERS["case"][0], ""),
        (BAD_HEADERS["no_quotes"][0], "a => b / [ ] __ [ ]"),
        (BAD_HEADERS["long_comment"][0], "A => B / [ ] __ [ ]"),
        (BAD_HEADERS["indented_comment"][0], "A => B / [ ] __ [ ]"),
        (BAD_HEADERS["few_rules"][0] + "Z => Y\n", "A => B / [ ] __ [ ]"),
        (BAD_HEADERS["format"][0], "A => B / [ ] __ [ ]"),
        (BAD_HEADERS["lost_words"][0], "A => B / [ ] __ [ ]"),
    ],
)
def test_csrfilt_does_not_do_what_refused_files_say(tmp_path, header, rule):
    """It does not tell: it applies no rule, or another, or loses the text."""
    rules = write(tmp_path, f"{header}{rule}\n")
    assert csrfilt(rules, "txt", "X A UM XA").lower() not in (
        "x b um xa",
        "x a %hesitation xa",
        "x { a / b } um xa",
    )
