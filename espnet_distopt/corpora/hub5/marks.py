"""Marks in the text of a Hub5 reference, which tell the scorer what to forgive.

`(word)` may be missing, of `{ one / two / @ }` any is right (`@`: nothing), and
`IGNORE_TIME_SEGMENT_IN_SCORING` takes a segment out.
"""

import re
from collections.abc import Sequence

from espnet_distopt.errors import InputError

IGNORED = "ignore_time_segment_in_scoring"


def reference_words(text: str) -> list[str]:
    """The words of a reference for character or word counts outside hub5 scoring.

    Lower case; hesitations, `<tags>` and segments marked as not scored are dropped,
    brackets removed, and of alternatives `{ a / b }` the first is taken. Spelled
    letters lose their periods, as in the training text: `I. B. M.'s` is `i b m's`. The
    STM itself stays as it is: hub5 scoring needs its marks.
    """
    text = first_alternatives(text.lower())
    words = [
        re.sub(r"[().]", "", token)
        for token in text.replace("._", " ").split()
        if not re.fullmatch(rf"\(*%hesitation\)*|<.*>|@|{IGNORED}", token)
    ]
    return [word for word in words if word]


def first_alternatives(text: str) -> str:
    """Return a text with the first of each of its alternatives.

    >>> first_alternatives("{ we are / we're } here")
    'we are  here'
    """
    return re.sub(r"\{\s*([^{}/]*)[^{}]*\}", r"\1", text)


def mend_stm(text: str) -> str:
    """Mend what SCTK rejects in the published STM: a doubled bracket, asides.

    Line breaks stay where they are; comments are not touched; mended text is not
    changed any more.
    """
    lines = text.rstrip().split("\n")
    return "".join(f"{_mend(line)}\n" for line in lines)


def _mend(line: str) -> str:
    if line.startswith(";;"):
        return line.rstrip()
    line = re.sub(r"\s*<[BE]_ASIDE>", "", line)
    return re.sub(r"\({2,}", "(", line).rstrip()


def check_marks(words: Sequence[str], where: str) -> None:
    """Check that the marks of a text are what SCTK understands.

    Args:
        words: the text, split at blanks.
        where: named in errors.

    Raises:
        InputError: brackets or braces don't pair, or stand without the blanks that
            SCTK needs around braces and slashes.
    """
    text = " ".join(words)
    if re.search(r"[()]", re.sub(r"\([^()]+\)", "", text)):
        raise InputError(f"{where}: brackets ( ) that don't pair in {text[:60]!r}")
    if re.search(r"\([^)]*[{}][^)]*\)", text):
        raise InputError(f"{where}: braces within brackets ( ) in {text[:60]!r}")
    for word in words:
        if len(word) > 1 and re.search(r"[{}]", word):
            raise InputError(
                f"{where}: expected blanks around braces, as in '{{ we are / we }}', "
                f"got {word!r}"
            )
    _check_alternatives(words, where)


def _check_alternatives(words: Sequence[str], where: str) -> None:
    # Alternatives may hold alternatives; in each open one, are there words yet?
    filled: list[bool] = []
    for word in words:
        if word == "{":
            filled.append(False)
            continue
        if word in ("}", "/"):
            if not filled:
                raise InputError(f"{where}: '{word}' without '{{' before it")
            if not filled[-1]:
                raise InputError(
                    f"{where}: an empty alternative; write '@' for nothing"
                )
            filled[-1] = False
            if word == "/":
                continue
            filled.pop()
        if filled:
            filled[-1] = True
    if filled:
        raise InputError(f"{where}: '{{' without '}}' after it")
