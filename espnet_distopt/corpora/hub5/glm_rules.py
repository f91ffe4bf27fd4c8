"""Reads the header and the rules of a GLM as SCTK's `rfilter1` does.

`csrfilt` passes the rules to this program. It writes the text where it can read them,
and an empty text or none where it cannot, with the exit code of success.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from espnet_distopt.errors import InputError

_LONGEST = 131
"""The most bytes of a line; rfilter1 reads the rest of a longer one as another line."""

_KEYS = ("NAME", "DESC", "FORMAT", "MAX_NRULES", "COPY_NO_HIT", "CASE_SENSITIVE")
_YES = ("T", "YES", "TRUE")
# What is a blank in C; Python takes bytes of Arabic and Chinese text for blanks, too.
_BLANKS = " \t\r\v\f"
_SHOWN = 60


@dataclass
class Oddities:
    """The lines that csrfilt takes but may not take as they were meant, by kind."""

    kinds: dict[str, dict[int, str]] = field(default_factory=dict)

    def add(self, number: int, line: str, kind: str) -> None:
        """Add a line, by its number (from 1), its text and what is odd about it."""
        self.kinds.setdefault(kind, {}).setdefault(number, line)

    def warnings(self, path: Path) -> Iterator[str]:
        """Yield a warning for each kind, with the first line that has it."""
        for kind, lines in self.kinds.items():
            number = min(lines)
            more = f" ({len(lines)} such lines)" if len(lines) > 1 else ""
            yield (
                f"warning: {path}:{number}: {kind}{more}: "
                f"{lines[number].strip()[:_SHOWN]!r}"
            )


class GlmRules:
    """The header and the rules that apply to one kind of input.

    Args:
        path: The file, for messages.
        names: The names of the input, of which the first is for messages.
        oddities: Gets what is odd about the lines.
    """

    def __init__(self, path: Path, names: Sequence[str], oddities: Oddities) -> None:
        self._path = path
        self._input = names[0]
        self._oddities = oddities
        # The first word of the file; None before the first line.
        self._sign: str | None = None
        self._header = {
            "FORMAT": "NIST1",
            "MAX_NRULES": "400",
            "COPY_NO_HIT": "T",
            "CASE_SENSITIVE": "T",
        }
        self._rules: list[tuple[int, str]] = []
        self._room = 0

    def read(self, number: int, line: str) -> None:
        """Read a line.

        Args:
            number: Its number in the file, from 1.
            line: Its text, in which each character is a byte.

        Raises:
            InputError: rfilter1 ends at the line.
        """
        first, *rest = _pieces(line)
        self._read(number, first)
        if not rest:
            return
        long = f"expected at most {_LONGEST} bytes, got {len(line)}: csrfilt reads the "
        long += "rest as a line of its own"
        self._oddities.add(number, line, long)
        try:
            for piece in rest:
                self._read(number, piece)
        except InputError:
            raise InputError(f"{self._path}:{number}: {long}, and ends") from None

    def check(self) -> None:
        """Check the rules as a whole, after the last line.

        Raises:
            InputError: rfilter1 would end, or lose the text.
        """
        if not self._rules:
            raise InputError(
                f"{self._path}: no rules for {self._input} files, expected lines like "
                "'a => b / [ ] __ [ ]'"
            )
        if self._header["COPY_NO_HIT"].upper() not in _YES:
            raise InputError(
                f"{self._path}: expected * copy_no_hit = 'T': else words without a "
                "rule are lost"
            )
        if self._header["CASE_SENSITIVE"].upper() in _YES:
            # The scorer makes all text upper case before it applies the rules.
            for number, rule in self._rules:
                if re.search("[a-z]", rule.partition("=>")[0]):
                    self._oddities.add(
                        number,
                        rule,
                        "needs the header * case_sensitive = 'F': the scorer's text is "
                        "upper case, so such a rule never applies",
                    )

    def _read(self, number: int, line: str) -> None:
        if self._sign is None:
            self._sign = re.match("[!-~]*", line)[0]  # type: ignore[index]
            return
        line = line.rstrip(_BLANKS)
        if not line or (self._sign and line.startswith(self._sign)):
            return
        if line.startswith("*"):
            self._read_header(number, line)
        else:
            text = line.partition(self._sign)[0] if self._sign else line
            self._read_rule(number, text.rstrip(_BLANKS))

    def _read_header(self, number: int, line: str) -> None:
        value = re.search(r"""["']([^"']+)""", line)
        if value is None:
            raise self._error(number, "expected a value in quotes", line)
        # rfilter1 looks for the keys anywhere in the line, so that a description with
        # the word "format" in it sets the format, too.
        keys = [key for key in _KEYS if key in line.upper()]
        if not keys:
            self._oddities.add(number, line, f"expected one of {', '.join(_KEYS)}")
        if "FORMAT" in keys and value[1] != "NIST1":  # in capitals only
            raise self._error(
                number, f"expected * format = 'NIST1', got {value[1]!r}", line
            )
        self._header.update(dict.fromkeys(keys, value[1]))

    def _read_rule(self, number: int, text: str) -> None:
        if not text:
            raise self._error(number, f"expected {self._sign} at the line's start", "")
        if "=>" not in text:
            raise self._error(number, "expected 'a => b / [ ] __ [ ]'", text)
        if fault := _fault(text, self._input == "stm"):
            self._oddities.add(number, text, fault)
        most = self._header["MAX_NRULES"]
        limit = int(most) if most.isdecimal() else 0
        self._room = self._room or limit
        self._rules.append((number, text))
        # They are counted from 1, in an array of the size that the header told before
        # the first rule.
        if len(self._rules) >= min(limit, self._room):
            raise InputError(
                f"{self._path}:{number}: more rules than * max_nrules = {most!r} has "
                "room for: put the number of lines there, above the first rule"
            )

    def _error(self, number: int, what: str, line: str) -> InputError:
        shown = f": {line.strip()[:_SHOWN]!r}" if line else ""
        return InputError(f"{self._path}:{number}: {what}{shown}")


def _pieces(line: str) -> list[str]:
    size = _LONGEST + 1
    return [line[start : start + size] for start in range(0, len(line) or 1, size)]


def _fault(rule: str, of_reference: bool) -> str:
    """Return what is odd about a rule that has an arrow, or an empty text."""
    left, _, rest = rule.partition("=>")
    if not left.strip(_BLANKS):
        return "nothing before =>"
    if rest and rest[0] not in _BLANKS:
        return "expected a blank after =>"
    right, slash, context = rest.rpartition("/")
    if not slash or _is_bracketed(context):
        right, context = rest, ""
    elif not re.fullmatch(r"\s.*?_+(\s.*)?", context, re.ASCII):
        return "expected blanks around / and __, as in '/ [ ] __ [ ]' at the end"
    before, _, after = context.partition("_")
    parts = (left, right, before, after.lstrip("_"))
    if any(part.count("[") != part.count("]") for part in parts):
        return "brackets [ ] that don't pair"
    return _alternatives_fault(right, of_reference)


def _is_bracketed(context: str) -> bool:
    """Tell whether rfilter1 takes the last slash for a part of the right side."""
    opening, closing = context.find("["), context.find("]")
    return opening >= 0 and closing < opening


def _alternatives_fault(right: str, of_reference: bool) -> str:
    text = right.strip(_BLANKS).removeprefix("[").removesuffix("]")
    words = re.findall(r"\S+", text, re.ASCII)
    text = " ".join(words)
    if "{" not in text and "}" not in text:
        return ""
    if not re.fullmatch(r"[^{}]*(\{[^{}]*\}[^{}]*)+", text):
        return "braces { } that don't pair"
    if any(not part.strip(" ") for part in re.split("[{}/]", text.strip("{} "))):
        return "an empty alternative; write '@' for nothing"
    if of_reference and any(
        len(word) > 1 and ("{" in word or "}" in word) for word in words
    ):
        return "expected blanks around braces, as in '{ we are / we }'"
    return ""
