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


# Here csrfilt ends, or loses the text: the reference would be empty.
FATAL = {
    "no_comment": ("* name 'x'\n;; y\n", r":2: expected 'a => b"),
    "blank_first": ("\n;; x\n", r":2: expected 'a => b"),
    "joined_sign": (";;x\n;; y\n", r":2: expected 'a => b"),
    "byte_order_mark": ("\ufeff;; x\n;; y\n", r":2: expected 'a => b"),
    "no_quotes": (";; x\n* case_sensitive = F\n", r":2: expected a value in quotes"),
    "indented": (";; x\n  * case_sensitive = 'F'\n", r":2: expected 'a => b"),
    "indented_comment": (";; x\n  ;; y\n", r":2: expected ;; at the line's start"),
    "format": (";; x\n* format = 'NIST2'\n", r":2: expected \* format = 'NIST1'"),
    "small_format": (";; x\n* format = 'nist1'\n", r":2: expected \* format = 'NIST1'"),
    "description": (
        ";; x\n* desc 'rules in this format'\n",
        r":2: expected \* format = 'NIST1', got 'rules in",
    ),
    "few_rules": (";; x\n* max_nrules = '1'\n", r":3: more rules than \* max_nrules"),
    "no_number": (
        ";; x\n* max_nrules = 'many'\n",
        r":3: more rules than \* max_nrules",
    ),
    "too_late": (
        ";; x\n* max_nrules = '2'\nA => B\n* max_nrules = '9'\n",
        r":5: more rules than \* max_nrules",
    ),
    "many_rules": (";; x\n" + "A => B\n" * 400, r":401: more rules than"),
    "lost_words": (";; x\n* copy_no_hit = 'F'\n", r": expected \* copy_no_hit = 'T'"),
    "long_comment": (";; x\n;; " + "y" * 130 + "\n", r":2: expected at most 131"),
    "no_arrow": (";; x\num %HESITATION / [ ] __ [ ]\n", r":2: expected 'a => b"),
    "no_arrow_of_words": (
        ';; x\nC => D\n;; INPUT_DEPENDENT_APPLICATION = "ctm"\n[IT\'S] [IT IS]\n',
        r":4: expected 'a => b",
    ),
    "no_rule_of_references": (
        ';; x\n;; INPUT_DEPENDENT_APPLICATION = "ctm"\n',
        r": no rules for stm files",
    ),
}


@pytest.mark.parametrize("kind", FATAL)
def test_an_error_is_what_ends_csrfilt_or_loses_the_text(tmp_path, kind):
    text, message = FATAL[kind]
    path = write(tmp_path, f"{text}A => B\n")
    with pytest.raises(InputError, match="rules.glm" + message):
        check_glm(path)
    filtered = [csrfilt(path, side, "X A") for side in ("stm", "ctm")]
    assert filtered != ["X B", "X B"]


# These it takes, though some never apply, or do something else than was meant.
ODD = {
    "unknown_key": ("* max_rules = '9'", "expected one of NAME, DESC"),
    "open_quote": ("* case_sensitive = 'F", ""),
    "late": ("Q => R\n* case_sensitive = 'F'", ""),
    "case": ("um => %HESITATION", "needs the header * case_sensitive = 'F'"),
    "long_rule": (f"Q => {'R' * 126} T => S", "expected at most 131 bytes, got 138"),
    "section": (
        ";; INPUT_DEPENDENT_APPLICATION = stm",
        'expected ;; INPUT_DEPENDENT_APPLICATION = "ctm"',
    ),
    "no_left_side": (" => x / [ ] __ [ ]", "nothing before =>"),
    "no_blank_after_arrow": ("Q =>b / [ ] __ [ ]", "expected a blank after =>"),
    "no_blank_after_slash": ("Q => b /[ ] __ [ ]", "expected blanks around /"),
    "no_blank_after_slot": ("Q => b / [ ] __[ ]", "expected blanks around /"),
    "ends_in_a_slot_and_letter": ("Q => b / [ ] __A", "expected blanks around /"),
    "no_slot": ("Q => b / [ ] [ ]", "expected blanks around / and __"),
    "alternatives_without_context": ("Q => { a / b }", "expected blanks around / and"),
    "open_left_bracket": ("[Q => b / [ ] __ [ ]", "brackets"),
    "open_right_bracket": ("Q => [b / [ ] __ [ ]", "brackets"),
    "open_context": ("Q => b / [ __ [ ]", "brackets"),
    "open_brace": ("Q => { b / c / [ ] __ [ ]", "braces"),
    "closing_brace": ("Q => b / c } / [ ] __ [ ]", "braces"),
    "empty_alternative": ("Q => { b / } / [ ] __ [ ]", "an empty alternative"),
    "no_blanks": ("Q => {W A / W'R} / [ ] __ [ ]", "expected blanks around br"),
    "no_blank_at_end": ("Q => { B / C} / [ ] __ [ ]", "expected blanks around br"),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_oddity_that_csrfilt_takes_is_told(tmp_path, kind):
    odd, message = ODD[kind]
    path = write(tmp_path, f";; x\n* copy_no_hit = 'T'\n{odd}\nA => B\n")
    told = warnings(path)
    assert len(told) == bool(message)
    assert all("rules.glm:3: " in line and message in line for line in told)
    # All other rules still apply, and no other word is lost.
    assert csrfilt(path, "txt", "X A UM") in ("X B UM", "X B %HESITATION")


def test_oddities_of_one_kind_are_one_warning(tmp_path):
    rules = "".join(f"W{n} => V{n} / [ ] __A\n" for n in range(30))
    [warning] = warnings(write(tmp_path, HEADER + rules))
    assert "rules.glm:10: " in warning and "(30 such lines)" in warning


def test_words_of_other_alphabets_are_words(tmp_path):
    """In Latin-1, bytes of Arabic and Chinese text are blanks to Python."""
    arabic = "%\u0623\u0645 => %\u062a\u0631\u062f\u0651\u062f / [ ] __ [ ]\n"
    assert warnings(write(tmp_path, f";; x\n{arabic}\u0645 => \u0645\n")) == []
    path = tmp_path / "rules.glm"
    path.write_bytes(b";;\n;;  Big5\n\xa7\x85\xa0 => %HESITATION / [ ] __ [ ]\n")
    assert warnings(path) == []


@pytest.mark.parametrize(("text", "message"), [("", "empty"), (HEADER, "no rules")])
def test_files_without_rules(tmp_path, text, message):
    with pytest.raises(InputError, match=f"rules.glm: {message}"):
        check_glm(write(tmp_path, text))
    with pytest.raises(InputError, match="no such file"):
        check_glm(tmp_path / "missing.glm")


SIDES = {"stm": "ref", "txt": "ref", "ctm": "hyp"}


def csrfilt(rules: Path, kind: str, text: str) -> str:
    """What SCTK makes of a text, blanks squeezed."""
    if shutil.which("sctk") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("sctk is not installed")
        pytest.skip("sctk is not installed")
    command = ["sctk", "csrfilt", "-i", kind, "-t", SIDES[kind], "-dh", str(rules)]
    lead = {"txt": "", "stm": "f A s 0 1 <O> ", "ctm": "f A 0 1 "}[kind]
    text = "".join(f"{lead}{word}\n" for word in text.split()) if lead else text
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    words = [line[len(lead) :] for line in done.stdout.splitlines()]
    return " ".join(" ".join(words).split())


def test_csrfilt_applies_the_rules_that_are_right(tmp_path):
    rules = write(tmp_path, HEADER + RULES)
    said = "UM-X WE'RE OK IN THE BACKYARD UH-HUH"
    filtered = csrfilt(rules, "txt", said)
    assert filtered == "UM X { we are / we're / @ } O. K. IN THE back yard %BCACK"
