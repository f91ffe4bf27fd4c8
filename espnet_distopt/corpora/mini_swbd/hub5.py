"""Texts for the STM and the mapping rules (GLM) of the synthetic evaluation set."""

from string import ascii_lowercase

from espnet_distopt.corpora.hub5.marks import IGNORED
from espnet_distopt.corpora.ldc.ms98 import plain_word, plain_words
from espnet_distopt.corpora.mini_swbd.phrases import ACRONYMS, HESITATIONS

STM_HEADER = """\
;; Synthetic speech in the form of the Hub5 2000 evaluation.
;; CATEGORY "0" "" ""
;; LABEL "O" "Overall" "Overall"
;; CATEGORY "1" "Hub5 Data Types" ""
;; LABEL "SWB" "Switchboard" "Conversations of known speakers on good lines"
;; LABEL "CHE" "CallHome" "Conversations of unseen speakers on bad lines"
"""

# The STM has the first form; the rules make the second one right, too.
_CONTRACTIONS = {
    "i'm": "i am",
    "it's": "it is",
    "that's": "that is",
    "you're": "you are",
    "don't": "do not",
    "doesn't": "does not",
}
_SPELLINGS = {
    "ok": "okay",
    "alright": "all right",
    "um-hum": "uh-huh",
    "mm-hm": "uh-huh",
}
_HESITATIONS = (*HESITATIONS, "hm", "eh", "ah", "er", "mm", "huh", "ha")

_GLM_HEADER = """\
;; Mapping rules of the synthetic Hub5 evaluation set
* name "mini_swbd.glm"
* desc "hesitations, spellings and contractions of the synthetic conversations"
* format = 'NIST1'
* max_nrules = '1000'
* copy_no_hit = 'T'
* case_sensitive = 'F'

"""


def reference_text(ms98: str) -> str:
    """Return an utterance as a Hub5 STM has it.

    Hesitations and partial words are marked as optional, and spelled letters have a
    period: `i. b. m.`.
    """
    words = (plain_word(token) for token in ms98.split() if plain_words(token))
    return " ".join(_mark(word) for word in words) or IGNORED.upper()


def _mark(word: str) -> str:
    if word in _HESITATIONS:
        return "(%HESITATION)"
    if word in ACRONYMS:
        return " ".join(f"{letter}." for letter in word.lower())
    return f"({word})" if word.endswith("-") else word.lower()


def glm_text() -> str:
    """Return the rules; `csrfilt` would apply none without `case_sensitive = 'F'`."""
    rules = [_rule(word, "%HESITATION") for word in _HESITATIONS]
    rules += [_rule(f"{letter}.", letter) for letter in ascii_lowercase]
    rules += [_rule(spelling, word) for spelling, word in _SPELLINGS.items()]
    rules += [
        _rule(short, f"{{ {short} / {long} }}") for short, long in _CONTRACTIONS.items()
    ]
    return _GLM_HEADER + "".join(rules)


def _rule(word: str, replacement: str) -> str:
    return f"{word} => {replacement} / [ ] __ [ ]\n"
