"""The marks in the text of a Hub5 reference, which tell the scorer what to forgive.

A recognizer may leave out `(word)`. Each of the alternatives `{ one / two / @ }` is
right, where `@` stands for no word. A segment with the text
`IGNORE_TIME_SEGMENT_IN_SCORING` is not scored.
"""

import re
from collections.abc import Sequence

from espnet_distopt.errors import InputError

IGNORED = "ignore_time_segment_in_scoring"


def reference_words(text: str) -> list[str]:
    """Return the words of a reference, for scoring without regard to its marks.

    The words are in lower case. Hesitations, `<tags>` and the mark of segments that are
    not scored are dropped; brackets are removed, and the first of the alternatives
    `{ a / b }` is taken. Spelled letters lose their periods, as in the training text:
    `I. B. M.'s` becomes `i b m's`. The STM itself keeps its marks for hub5 scoring.
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
    """Mend what SCTK rejects in the published STM: doubled brackets, marks of asides.

    The lines stay the same lines, comments stay as they are, and a text that is mended
    already does not change.
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
        words: The text, split at blanks.
        where: The place that messages name, `file:line`.

    Raises:
        InputError: Brackets or braces don't pair, or braces and slashes lack the
            blanks that SCTK needs around them.
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
    # Alternatives may hold alternatives. For each open one the list tells whether it
    # has words yet.
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
