"""Decides who talks to whom in the synthetic corpus, and under which number."""

import random
from dataclasses import dataclass

from espnet_distopt.corpora.mini_swbd.dialogue import ALL, Variety
from espnet_distopt.corpora.mini_swbd.speakers import (
    Speaker,
    known_speakers,
    unseen_speakers,
)
from espnet_distopt.errors import InputError

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
