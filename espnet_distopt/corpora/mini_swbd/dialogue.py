"""Invents telephone conversations of two speakers, in the notation of MS98."""

import random
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

from espnet_distopt.corpora.mini_swbd.phrases import (
    BACKCHANNELS,
    HESITATIONS,
    OPENERS,
    PARTIALS,
    SHARED,
    TOPICS,
    Grammar,
)

Side = Literal["A", "B"]

# How often an utterance has what written text does not have.
_OPENER, _HESITATION, _PARTIAL, _REPEAT = 0.25, 0.25, 0.06, 0.06
_LAUGHED_WORD, _LAUGHTER, _NOISE = 0.02, 0.04, 0.04
_BACKCHANNEL = 0.35
_EXCHANGES_PER_TOPIC = 5


@dataclass(frozen=True)
class Variety:
    """How much of the grammar the speakers use; less of it is easier to learn.

    Attributes:
        topics: The number of topics that they talk about.
        alternatives: The number of alternatives of each symbol, the first ones.
    """

    topics: int
    alternatives: int


ALL = Variety(
    len(TOPICS),
    max(len(found) for each in (SHARED, *TOPICS.values()) for found in each.values()),
)
"""The whole grammar."""


@dataclass(frozen=True)
class Turn:
    """One utterance.

    Attributes:
        side: The side that speaks.
        text: Words and MS98 marks, as `uh`, `th[at]-`, `[noise]`, `[laughter-yeah]`.
        gap: Seconds after the end of everything said before; negative if the speaker
            starts before the other one has ended.
    """

    side: Side
    text: str
    gap: float


def invent_dialogue(
    names: tuple[str, str],
    turns: int,
    rng: random.Random,
    variety: Variety = ALL,
) -> list[Turn]:
    """Invent a conversation.

    Args:
        names: The first names of the speakers on side A and side B.
        turns: The number of utterances, including greetings and good-byes.
        rng: Makes every choice.
        variety: How much of the grammar is used.

    Returns:
        The utterances, in the order in which they start.
    """
    topics = dict(islice(TOPICS.items(), variety.topics))
    topics = {name: _first(own, variety) for name, own in topics.items()}
    shared = _first(SHARED, variety)
    talk = _talk(names, shared, topics, rng)
    body = [next(talk) for _ in range(max(turns - 2, 0))]
    ends = [_turn(side, expand("bye", shared, rng), rng) for side in _sides(rng)]
    return [replace(turn, text=_disfluent(turn, rng)) for turn in (body + ends)[:turns]]


def expand(
    symbol: str, grammar: Mapping[str, Sequence[str]], rng: random.Random
) -> str:
    """Choose one of a symbol's alternatives, and expand the symbols inside it."""
    text = rng.choice(grammar[symbol])
    return re.sub(r"\{(\w+)\}", lambda found: expand(found[1], grammar, rng), text)


def _first(grammar: Grammar, variety: Variety) -> Grammar:
    return {name: all_[: variety.alternatives] for name, all_ in grammar.items()}


def _talk(
    names: tuple[str, str],
    shared: Grammar,
    topics: Mapping[str, Grammar],
    rng: random.Random,
) -> Iterator[Turn]:
    """Yield greetings, and then one topic after another, without end."""
    first, second = _sides(rng)
    for side in (first, second):
        grammar = {**shared, "name": [names[side == "B"]]}
        yield _turn(side, expand("hello", grammar, rng), rng)
    while True:
        for topic in rng.sample(sorted(topics), len(topics)):
            grammar = {**shared, "topic": [topic]}
            yield _turn(first, expand("topic_line", grammar, rng), rng)
            for _ in range(_EXCHANGES_PER_TOPIC):
                first, second = _sides(rng)
                own = ChainMap(topics[topic], shared)
                yield from _exchange(first, second, own, rng)


def _exchange(
    asker: Side, teller: Side, grammar: Mapping[str, list[str]], rng: random.Random
) -> Iterator[Turn]:
    """Yield a question, an answer, and a story with the listener's comments."""
    if rng.random() < 0.7:
        yield _turn(asker, expand("ask", grammar, rng), rng)
        if rng.random() < 0.5:
            yield _turn(teller, expand("answer", grammar, rng), rng)
    for _ in range(rng.randint(1, 3)):
        yield _turn(teller, expand("tell", grammar, rng), rng)
        if rng.random() < _BACKCHANNEL:
            yield Turn(asker, rng.choice(BACKCHANNELS), rng.uniform(-0.4, 0.1))
    if rng.random() < 0.4:
        yield _turn(asker, expand("agree", grammar, rng), rng)


def _turn(side: Side, text: str, rng: random.Random) -> Turn:
    return Turn(side, text, gap=rng.uniform(0.15, 0.8))


def _sides(rng: random.Random) -> tuple[Side, Side]:
    return rng.choice((("A", "B"), ("B", "A")))


def _disfluent(turn: Turn, rng: random.Random) -> str:
    """Return the turn's text as people say it, with hesitations and false starts."""
    words = turn.text.split()
    if turn.text in BACKCHANNELS:
        return _laughed(words, rng)
    if rng.random() < _REPEAT:
        words[:0] = words[:1]
    if rng.random() < _OPENER:
        words[:0] = rng.choice(OPENERS).split()
    for chance, marks in (
        (_HESITATION, HESITATIONS),
        (_PARTIAL, list(PARTIALS)),
        (_NOISE, ["[noise]"]),
    ):
        if rng.random() < chance:
            words.insert(rng.randrange(len(words)), rng.choice(marks))
    return _laughed(words, rng)


def _laughed(words: list[str], rng: random.Random) -> str:
    if rng.random() < _LAUGHED_WORD and words[0].isalpha():
        words[0] = f"[laughter-{words[0]}]"
    if rng.random() < _LAUGHTER:
        words.append("[laughter]")
    return " ".join(words)
