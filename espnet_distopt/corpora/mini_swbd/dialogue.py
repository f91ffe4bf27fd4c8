"""Invents telephone conversations of two speakers, in the notation of MS98."""

import random
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from espnet_distopt.corpora.mini_swbd.phrases import (
    BACKCHANNELS,
    HESITATIONS,
    OPENERS,
    PARTIALS,
    SHARED,
    TOPICS,
)

Side = Literal["A", "B"]

# How often an utterance has what written text does not have.
_OPENER, _HESITATION, _PARTIAL, _REPEAT = 0.25, 0.25, 0.06, 0.06
_LAUGHED_WORD, _LAUGHTER, _NOISE = 0.02, 0.04, 0.04
_BACKCHANNEL = 0.35
_EXCHANGES_PER_TOPIC = 5


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
    names: tuple[str, str], turns: int, rng: random.Random
) -> list[Turn]:
    """Invent a conversation.

    Args:
        names: The first names of the speakers on side A and side B.
        turns: The number of utterances, including greetings and good-byes.
        rng: Makes every choice.

    Returns:
        The utterances, in the order in which they start.
    """
    talk = _talk(names, rng)
    body = [next(talk) for _ in range(max(turns - 2, 0))]
    ends = [_turn(side, expand("bye", SHARED, rng), rng) for side in _sides(rng)]
    return [replace(turn, text=_disfluent(turn, rng)) for turn in (body + ends)[:turns]]


def expand(
    symbol: str, grammar: Mapping[str, Sequence[str]], rng: random.Random
) -> str:
    """Choose one of a symbol's alternatives, and expand the symbols inside it."""
    text = rng.choice(grammar[symbol])
    return re.sub(r"\{(\w+)\}", lambda found: expand(found[1], grammar, rng), text)


def _talk(names: tuple[str, str], rng: random.Random) -> Iterator[Turn]:
    """Yield greetings, and then one topic after another, without end."""
    first, second = _sides(rng)
    for side in (first, second):
        grammar = {**SHARED, "name": [names[side == "B"]]}
        yield _turn(side, expand("hello", grammar, rng), rng)
    while True:
        for topic in rng.sample(sorted(TOPICS), len(TOPICS)):
            grammar = {**SHARED, "topic": [topic]}
            yield _turn(first, expand("topic_line", grammar, rng), rng)
            for _ in range(_EXCHANGES_PER_TOPIC):
                first, second = _sides(rng)
                yield from _exchange(first, second, topic, rng)


def _exchange(
    asker: Side, teller: Side, topic: str, rng: random.Random
) -> Iterator[Turn]:
    """Yield a question, an answer, and a story with the listener's comments."""
    grammar = ChainMap(TOPICS[topic], SHARED)
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
