"""Who talks to whom in the synthetic corpus, and under which number."""

import random
from dataclasses import dataclass

from espnet_distopt.data.speakers import Speaker, known_speakers, unseen_speakers
from espnet_distopt.errors import InputError

TRAIN, SWBD, CALLHOME = "train", "swbd", "callhome"
_FIRST_TRAIN, _FIRST_SWBD, _FIRST_CALLHOME = 2001, 4390, 4156


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the corpus is.

    Attributes:
        conversations: of the training discs.
        test_conversations: of each test half.
        turns: utterances in a conversation.
        speakers: known people; they talk in training and in the Switchboard half.
        test_speakers: people heard in the CallHome half only.
    """

    conversations: int = 120
    test_conversations: int = 6
    turns: int = 66
    speakers: int = 120
    test_speakers: int = 10


@dataclass(frozen=True)
class Plan:
    """A conversation to make: which half, its number on the discs, and who talks."""

    part: str
    number: int
    speakers: tuple[Speaker, Speaker]
    turns: int
    seed: str

    @property
    def name(self) -> str:
        """The recording's name: `sw02001`, `sw_4390` or `en_4156`."""
        prefix = {TRAIN: "sw0", SWBD: "sw_", CALLHOME: "en_"}[self.part]
        return f"{prefix}{self.number}"


def plan_corpus(sizes: Sizes, seed: int) -> list[Plan]:
    """Decide who talks in which conversation."""
    rng = random.Random(f"corpus {seed}")
    # No more than can talk, so that the Switchboard half holds nobody new.
    known = known_speakers(min(sizes.speakers, 2 * sizes.conversations), seed)
    unseen = unseen_speakers(sizes.test_speakers, seed)
    plans = []
    for part, first, count, people in (
        (TRAIN, _FIRST_TRAIN, sizes.conversations, known),
        (SWBD, _FIRST_SWBD, sizes.test_conversations, known),
        (CALLHOME, _FIRST_CALLHOME, sizes.test_conversations, unseen),
    ):
        pairs = _pairs(people, count, rng)
        for number, speakers in enumerate(pairs, start=first):
            conversation_seed = f"{part} {number} {seed}"
            plans.append(Plan(part, number, speakers, sizes.turns, conversation_seed))
    return plans


def _pairs(
    people: list[Speaker], count: int, rng: random.Random
) -> list[tuple[Speaker, Speaker]]:
    """Pairs in which everybody talks in turn: everyone once, then again."""
    queue: list[Speaker] = []
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
    ):
        if getattr(sizes, name) < least:
            raise InputError(
                f"--{name} is {getattr(sizes, name)}, expected at least {least}"
            )
    most = _FIRST_SWBD - _FIRST_TRAIN
    if max(sizes.conversations, sizes.test_conversations) > most:
        raise InputError(f"at most {most} conversations have a number on the discs")
