"""Checks GLM files: the rules by which NIST's scorer maps spellings and contractions.

In a rule such as `um => %HESITATION / [ ] __ [ ]`, the left side becomes the right side
where the characters around it are those before and after `__`. SCTK's `csrfilt` reads
most oddities in a GLM without a warning, and then applies no rule or half a rule. Its
figures are the official ones all the same, so such oddities are told and accepted. An
error is only what makes `csrfilt` end or lose the text, which it does not tell either.
"""

from collections.abc import Callable
from pathlib import Path

from espnet_distopt.corpora.hub5.glm_rules import GlmRules, Oddities
from espnet_distopt.corpora.hub5.glm_sections import applying
from espnet_distopt.files.text import read_bytes

_SIDES = (("stm", "ref"), ("ctm", "hyp"))
"""By which names sections of a GLM are chosen, for the reference and for recognized
words; the scorer filters both, each by the rules that apply to it."""


def check_glm(path: Path, log: Callable[[str], None] = print) -> None:
    """Check that SCTK's `csrfilt` does what a GLM says.

    Args:
        path: The GLM.
        log: Called with a warning for each kind of oddity, which names the first line
            that has it and says how many there are. With one kind, the scoring may
            still fail: where a rule puts `[{WE ARE / WE}]`, without blanks around the
            braces, `hubscr` ends with an error if a reference has the word.

    Raises:
        InputError: The file can't be read, or has a line at which `csrfilt` ends or
            loses the text; the message names file and line.
    """
    # Comments may be in any coding; in Latin-1 every byte is a character.
    lines = read_bytes(path).decode("latin-1").split("\n")
    oddities = Oddities()
    for names in _SIDES:
        rules = GlmRules(path, names, oddities)
        for number, line in applying(lines, names, oddities):
            rules.read(number, line)
        rules.check()
    for warning in oddities.warnings(path):
        log(warning)
