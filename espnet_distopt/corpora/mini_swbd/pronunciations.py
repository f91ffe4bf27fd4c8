"""The pronunciations of the synthetic corpus's words, as its synthesizer says them."""

from collections.abc import Iterable

from espnet_distopt.corpora.ldc.ms98 import plain_words
from espnet_distopt.corpora.mini_swbd.phrases import PARTIALS
from espnet_distopt.corpora.mini_swbd.synthesis import Synthesizer

ACCENTS = ("en-us", "en-gb-x-rp", "en")
"""The accents whose pronunciations a word gets; the others' are among these."""

_SPOKEN = {plain_words(mark)[0]: letters for mark, letters in PARTIALS.items()}
_STRESS = "',%="


def pronounce(words: Iterable[str]) -> dict[str, list[tuple[str, ...]]]:
    """Return the different pronunciations of each word, in espeak-ng's phonemes.

    Raises:
        InputError: espeak-ng is not installed, or has no phonemes for a word.
    """
    lexicon: dict[str, list[tuple[str, ...]]] = {word: [] for word in sorted({*words})}
    with Synthesizer() as synthesizer:
        for accent in ACCENTS:
            for word, found in lexicon.items():
                phones = synthesizer.phonemes(_SPOKEN.get(word, word), accent)
                # Stress is not a property that a short word keeps in a sentence.
                plain = tuple(filter(None, map(without_stress, phones)))
                if plain not in found:
                    found.append(plain)
    return lexicon


def without_stress(phoneme: str) -> str:
    """Return the name of a phoneme without marks of stress; "" if it is only a mark."""
    return phoneme.strip(_STRESS)
