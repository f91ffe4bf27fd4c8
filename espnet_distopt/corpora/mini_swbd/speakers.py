"""The speakers of the synthetic corpus, and their voices."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.corpora.mini_swbd.synthesis import Voice

# These variants of espeak-ng sound like people, not like robots, whispers or croaks.
# Training has many, so that some of them resemble the unseen ones.
_KNOWN_ACCENTS = ("en-us", "en-us-nyc", "en", "en-gb-x-rp")
_KNOWN_MEN = (
    *("m1", "m2", "m3", "m4", "m6", "m7", "m8", "Andy", "Mario", "adam", "Diogo"),
    *("Gene", "Hugo", "Lee", "Marco", "Michael", "antonio", "benjamin", "david", "ed"),
    *(
        "edward",
        "ian",
        "iven",
        "john",
        "marcelo",
        "michel",
        "miguel",
        "norbert",
        "paul",
    ),
    *("pedro", "sandro", "travis", "victor", "zac"),
)
_KNOWN_WOMEN = (
    *("f1", "f2", "f3", "f4", "f5", "Alicia", "Andrea", "Annie", "anika", "aunty"),
    *("belinda", "linda", "steph", "steph2"),
)
_UNSEEN_ACCENTS = ("en-us", "en-gb-x-rp")
_UNSEEN_MEN = ("max", "rob", "robert", "edward2")
_UNSEEN_WOMEN = ("shelby", "steph3")


@dataclass(frozen=True)
class Speaker:
    """A person: a first name to introduce themselves by, and a voice."""

    name: str
    voice: Voice


_MEN_NAMES = ("john", "mike", "david", "bob", "jim", "steve", "paul", "tom")
_WOMEN_NAMES = ("mary", "linda", "susan", "karen", "anna", "lisa", "jane", "carol")


def known_speakers(count: int, seed: int) -> list[Speaker]:
    """Return the people of training, who also talk in the Switchboard test half."""
    return _draw(
        count, f"known {seed}", _KNOWN_ACCENTS, _KNOWN_MEN, _KNOWN_WOMEN, spread=8
    )


def unseen_speakers(count: int, seed: int) -> list[Speaker]:
    """Return the people of the CallHome half, with variants that training lacks."""
    return _draw(
        count, f"unseen {seed}", _UNSEEN_ACCENTS, _UNSEEN_MEN, _UNSEEN_WOMEN, spread=12
    )


def _draw(
    count: int,
    seed: str,
    accents: Sequence[str],
    men: Sequence[str],
    women: Sequence[str],
    spread: int,
) -> list[Speaker]:
    """Draw women and men in turn; pitch varies by `spread`, and rate by twice that."""
    rng = random.Random(seed)
    speakers = []
    for number in range(count):
        variants, names = (men, _MEN_NAMES) if number % 2 else (women, _WOMEN_NAMES)
        voice = Voice(
            name=f"{rng.choice(accents)}+{rng.choice(variants)}",
            rate=175 + rng.randint(-2 * spread, 2 * spread),
            pitch=50 + rng.randint(-spread, spread),
            range=rng.randint(40, 70),
        )
        speakers.append(Speaker(rng.choice(names), voice))
    return speakers
