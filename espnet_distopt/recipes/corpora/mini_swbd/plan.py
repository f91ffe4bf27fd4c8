"""Decides who talks to whom in the synthetic corpus, with which voice and number."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import ALL, Variety
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import Voice

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


TRAIN, SWBD, CALLHOME = "train", "swbd", "callhome"
_FIRST = {TRAIN: 2001, SWBD: 4390, CALLHOME: 4156}
_FIRST_PIN = 1000
_DISCS = 4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the corpus is.

    Attributes:
        conversations: Conversations on the training discs.
        test_conversations: Conversations of each test half.
        turns: Utterances in a conversation.
        speakers: Known people, who talk in training and in the Switchboard half.
        test_speakers: Unseen people, who talk only in the CallHome half.
        topics: Topics that they talk about; fewer are easier to recognize.
        alternatives: Alternatives of each phrase; fewer are easier to recognize.
    """

    conversations: int = 200
    test_conversations: int = 6
    turns: int = 66
    speakers: int = 200
    test_speakers: int = 10
    topics: int = ALL.topics
    alternatives: int = ALL.alternatives


@dataclass(frozen=True, eq=False)
class Person:
    """A speaker, and the number (PIN) by which the corpus knows them."""

    pin: int
    speaker: Speaker


Pair = tuple[Person, Person]


@dataclass(frozen=True)
class Plan:
    """A conversation to make.

    Attributes:
        part: TRAIN, or the test half SWBD or CALLHOME.
        number: The number of the conversation on the discs.
        disc: The number of its disc; the test halves have one disc.
        people: The people on side A and on side B.
        turns: The number of utterances.
        variety: How much of the grammar is used.
        seed: Decides what is said, and how.
    """

    part: str
    number: int
    disc: int
    people: Pair
    turns: int
    variety: Variety
    seed: str

    @property
    def name(self) -> str:
        """Return the recording's name, as `sw02001`, `sw_4390` or `en_4156`."""
        prefix = {TRAIN: "sw0", SWBD: "sw_", CALLHOME: "en_"}[self.part]
        return f"{prefix}{self.number}"


def plan_corpus(sizes: Sizes, seed: int) -> list[Plan]:
    """Decide who talks in which conversation."""
    rng = random.Random(f"corpus {seed}")
    # There are no more people than can talk in training, so that the Switchboard half
    # has no one new.
    known = _people(known_speakers(min(sizes.speakers, 2 * sizes.conversations), seed))
    unseen = _people(unseen_speakers(sizes.test_speakers, seed))
    train = _pairs(known, sizes.conversations, rng)
    halves = {
        SWBD: _pairs(_trained(known, train), sizes.test_conversations, rng),
        CALLHOME: _pairs(unseen, sizes.test_conversations, rng),
    }
    return [
        Plan(
            part,
            number,
            1 + _DISCS * (number - _FIRST[part]) // len(pairs) if part == TRAIN else 1,
            people,
            sizes.turns,
            Variety(sizes.topics, sizes.alternatives),
            f"{part} {number} {seed}",
        )
        for part, pairs in {TRAIN: train, **halves}.items()
        for number, people in enumerate(pairs, start=_FIRST[part])
    ]


def _people(speakers: list[Speaker]) -> list[Person]:
    return [Person(pin, speaker) for pin, speaker in enumerate(speakers, _FIRST_PIN)]


def _trained(people: list[Person], train: list[Pair]) -> list[Person]:
    """Return the people who are not in the first tenth, which becomes train_dev."""
    dev = [person for pair in train[: 1 + len(train) // 10] for person in pair]
    rest = [person for person in people if person not in dev]
    return rest if len(rest) > 1 else people


def _pairs(people: list[Person], count: int, rng: random.Random) -> list[Pair]:
    """Return pairs in which all people talk once before anyone talks again."""
    queue: list[Person] = []
    pairs = []
    for _ in range(count):
        if len(queue) < 2:
            rest = [person for person in people if person not in queue]
            queue += rng.sample(rest, len(rest))
        pairs.append((queue.pop(0), queue.pop(0)))
    return pairs


def check_sizes(sizes: Sizes) -> None:
    """Refuse sizes that make no corpus, or more conversations than numbers exist."""
    for name, least in (
        ("conversations", 1),
        ("test_conversations", 1),
        ("turns", 4),
        ("speakers", 2),
        ("test_speakers", 2),
        ("topics", 1),
        ("alternatives", 1),
    ):
        if getattr(sizes, name) < least:
            raise InputError(
                f"--{name} is {getattr(sizes, name)}, expected at least {least}"
            )
    most = _FIRST[SWBD] - _FIRST[TRAIN]
    if max(sizes.conversations, sizes.test_conversations) > most:
        raise InputError(f"at most {most} conversations have a number on the discs")
