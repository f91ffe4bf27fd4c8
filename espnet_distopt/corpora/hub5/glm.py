"""Checks GLM files: the rules by which NIST's scorer maps spellings and contractions.

In a rule such as `um => %HESITATION / [ ] __ [ ]`, the left side becomes the right side
where the characters around it are those before and after `__`. SCTK's `csrfilt` reads
most mistakes in a GLM without a warning, and then applies no rule or half a rule, or
drops the text.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_bytes

_LONGEST = 131
"""The most bytes of a line, also of a comment: `csrfilt` splits a longer one in two."""

_SECTION = re.compile(r';;\s+INPUT_DEPENDENT_APPLICATION\s*=\s*"([^"]*)"')
_KEYS = ("NAME", "DESC", "FORMAT", "MAX_NRULES", "COPY_NO_HIT", "CASE_SENSITIVE")
_NO_BLANKS = "expected blanks around braces, as in '{ we are / we }'"
_YES = ("T", "YES", "TRUE")
_NO = ("F", "NO", "FALSE")


@dataclass(frozen=True)
class _Rule:
    text: str
    where: str
    of_reference: bool


@dataclass
class _Rules:
    """What `csrfilt` reads in a file; the header starts with the defaults."""

    header: dict[str, str] = field(
        default_factory=lambda: {
            "FORMAT": "NIST1",
            "MAX_NRULES": "400",
            "COPY_NO_HIT": "T",
            "CASE_SENSITIVE": "T",
        }
    )
    rules: list[_Rule] = field(default_factory=list)


def check_glm(path: Path, log: Callable[[str], None] = print) -> None:
    """Check that SCTK's `csrfilt` does what a GLM says.

    Args:
        path: The GLM.
        log: Called with a warning for mistakes of two kinds, which NIST's own files
            have. One is a broken rule for recognised words only, which harms only the
            words that it names. The other is `[{WE ARE / WE}]` in a rule for
            references: `hubscr` ends with an error if a reference has the word.

    Raises:
        InputError: The file can't be read, has no rules, or has a line that `csrfilt`
            fails at, ignores or misreads; the message names file and line.
    """
    read = _read(path)
    if not read.rules:
        raise InputError(f"{path}: no rules, expected lines like 'a => b / [ ] __ [ ]'")
    for rule in read.rules:
        fault = _fault(rule)
        nists = fault == _NO_BLANKS and "[{" in rule.text
        if fault and not nists and (rule.of_reference or "=>" not in rule.text):
            raise InputError(f"{rule.where}: {fault}: {rule.text.strip()[:60]!r}")
        if fault:
            log(f"warning: {rule.where}: {fault}: {rule.text.strip()[:60]!r}")
    _check_header(path, read)


def _read(path: Path) -> _Rules:
    # Comments may be in any coding; in Latin-1 every byte is a character.
    lines = read_bytes(path).decode("latin-1").split("\n")
    sign = lines[0].split()[0] if lines[0].split() else ""
    if sign not in (";", ";;") or not lines[0].startswith(sign):
        raise InputError(
            f"{path}:1: expected a comment that starts with ';; ', for the first word "
            "of the file is what marks its comments"
        )
    read = _Rules()
    of_reference = True
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        if len(line) > _LONGEST:
            raise InputError(
                f"{where}: expected at most {_LONGEST} characters, got {len(line)}"
            )
        if section := _SECTION.match(line):
            of_reference = _applies_to_reference(section[1], where)
        elif line.startswith(";;") and "INPUT_DEPENDENT_APPLICATION" in line:
            raise InputError(
                f'{where}: expected ;; INPUT_DEPENDENT_APPLICATION = "ctm" or the like'
            )
        elif line.startswith("*"):
            _read_header(read, line, where)
        elif line.startswith(sign) or not line.strip():
            continue
        elif text := line.partition(sign)[0].rstrip():
            read.rules.append(_Rule(text, where, of_reference))
        else:
            raise InputError(f"{where}: expected {sign} at the line's start")
    return read


def _applies_to_reference(pattern: str, where: str) -> bool:
    try:
        return any(re.search(pattern.lower(), name) for name in ("stm", "ref"))
    except re.error:
        raise InputError(
            f"{where}: expected a regular expression, got {pattern!r}"
        ) from None


def _read_header(read: _Rules, line: str, where: str) -> None:
    value = re.search(r"""["']([^"']*)["']""", line)
    if value is None:
        raise InputError(f"{where}: expected a value in quotes: {line.strip()[:60]!r}")
    if read.rules:
        raise InputError(f"{where}: the header must come before the first rule")
    # csrfilt looks for the keys anywhere in the line, so that a description with the
    # word "format" in it sets the format, too.
    keys = [key for key in _KEYS if key in line.upper()]
    if not keys:
        raise InputError(f"{where}: expected one of {', '.join(_KEYS)}")
    read.header.update(dict.fromkeys(keys, value[1]))


def _check_header(path: Path, read: _Rules) -> None:
    header = {key: value.upper() for key, value in read.header.items()}
    if read.header["FORMAT"] != "NIST1":  # in capitals only
        got = read.header["FORMAT"]
        raise InputError(f"{path}: expected * format = 'NIST1', got {got!r}")
    most = header["MAX_NRULES"]
    # It must be one more than the rules, for csrfilt counts them from 1 in an array of
    # this size.
    if not most.isdecimal() or int(most) <= len(read.rules):
        raise InputError(
            f"{path}: expected * max_nrules = '{len(read.rules) + 1}' or more for "
            f"{len(read.rules)} rules, got {most!r}"
        )
    if header["COPY_NO_HIT"] not in _YES:
        raise InputError(
            f"{path}: expected * copy_no_hit = 'T': else words without a rule are lost"
        )
    if header["CASE_SENSITIVE"] in _NO:
        return
    # The scorer makes all text upper case before it applies the rules.
    for rule in read.rules:
        if re.search("[a-z]", rule.text):
            raise InputError(
                f"{rule.where}: needs the header * case_sensitive = 'F': the scorer's "
                f"text is upper case, so {rule.text.strip()[:60]!r} would never apply"
            )


def _fault(rule: _Rule) -> str:
    """Return what is wrong with a rule, or an empty text."""
    left, arrow, rest = rule.text.partition("=>")
    if not arrow:
        return "expected 'a => b / [ ] __ [ ]'"
    if not left.strip():
        return "nothing before =>"
    if rest and not rest[0].isspace():
        return "expected a blank after =>"
    right, slash, context = rest.rpartition("/")
    if not slash or _is_bracketed(context):
        right, context = rest, ""
    elif not re.fullmatch(r"\s.*?_+(\s.*)?", context):
        return "expected blanks around / and __, as in '/ [ ] __ [ ]' at the end"
    before, _, after = context.partition("_")
    parts = (left, right, before, after.lstrip("_"))
    if any(part.count("[") != part.count("]") for part in parts):
        return "brackets [ ] that don't pair"
    return _alternatives_fault(right, rule.of_reference)


def _is_bracketed(context: str) -> bool:
    """Tell whether `csrfilt` takes the last slash for a part of the right side."""
    opening, closing = context.find("["), context.find("]")
    return opening >= 0 and closing < opening


def _alternatives_fault(right: str, of_reference: bool) -> str:
    words = right.strip().removeprefix("[").removesuffix("]").split()
    text = " ".join(words)
    if "{" not in text and "}" not in text:
        return ""
    if not re.fullmatch(r"[^{}]*(\{[^{}]*\}[^{}]*)+", text):
        return "braces { } that don't pair"
    if any(not part.strip() for part in re.split("[{}/]", text.strip("{} "))):
        return "an empty alternative; write '@' for nothing"
    if of_reference and any(
        len(word) > 1 and ("{" in word or "}" in word) for word in words
    ):
        return _NO_BLANKS
    return ""
