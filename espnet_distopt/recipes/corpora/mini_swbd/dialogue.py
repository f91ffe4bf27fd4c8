"""Invents telephone conversations of two speakers, in the notation of MS98.

They come from a small grammar. Each symbol has alternatives. Inside an alternative,
`{symbol}` is replaced by one of that symbol's alternatives. A topic's own symbols come
before the shared ones.
"""

import random
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

Grammar = dict[str, list[str]]

BACKCHANNELS = [
    *("uh-huh", "yeah", "right", "oh yeah", "okay", "sure", "oh really", "hm"),
    *("oh i see", "that's right", "yeah i know", "oh wow", "that's nice"),
    "that's true",
]
HESITATIONS = ["uh", "um"]
OPENERS = ["well", "so", "and", "but", "you know", "i mean", "yeah", "oh", "no"]

# Each partial word as MS98 writes it, with letters that make espeak-ng say the part.
PARTIALS = {
    "th[at]-": "thuh",
    "w[e]-": "wuh",
    "b[ut]-": "buh",
    "prob[ably]-": "prob",
    "re[ally]-": "ree",
    "some[thing]-": "some",
    "s[o]-": "suh",
    "be[cause]-": "bee",
}

# These are spoken letter by letter. NASA is in capitals, but a word, and so is `us`.
ACRONYMS = {
    word: " ".join(word.lower())
    for word in ("IBM", "MTV", "PC", "TI", "TV", "US", "VCR")
}

_SHARED = """
who: my wife | my husband | my son | my daughter | my brother | my sister | my mother
  | my dad | my friend | my neighbor
day: monday | tuesday | wednesday | thursday | friday | saturday | sunday
when: last weekend | last year | last night | a while ago | last month | on {day} |
  two years ago | this morning | yesterday
often: every day | all the time | once a week | on weekends | every year | in the
  summer | in the winter | once in a while | on {day}
number: two | three | four | five | six | seven | eight | ten | twelve | twenty |
  thirty
good: good | great | nice | fun | wonderful | interesting
bad: bad | terrible | awful | hard | expensive | boring
how: pretty | really | very | so | kind of | too
company: IBM | TI | the phone company | NASA | a bank
place: texas | dallas | california | colorado | florida | boston | chicago | new york
  | virginia | georgia
think: i think | i guess | i know | it seems like | i would say
answer: yes we do | no not really | not very much | a little bit | oh i love it | i
  used to | that's a good question | i don't know
agree: {think} you're right | that sounds {how} {good} | that must be {how} {bad} | i
  never thought about that | we had the same problem {when} | {who} says the same
  thing | it's the same here in {place}
hello: hi this is {name} | hello my name is {name} | hi i'm {name} from {place} |
  hello this is {name} in {place} how are you | hi {name} here i'm calling from
  {place}
topic_line: the topic today is {topic} | they want us to talk about {topic} | so we
  are going to talk about {topic} | what do you think about {topic}
bye: well it was nice talking to you | i enjoyed talking with you | okay have a good
  evening | well thank you for the call | i have to go now take care | all right bye
  bye
"""

_TOPICS = """
[the weather]
weather: rain | snow | wind | sunshine | fog
warm: hot | cold | warm | wet | dry | cool
ask: how is the weather in {place} | do you get much {weather} up there | is it {how}
  {warm} where you live
tell: it was {how} {warm} here {when} | we had {number} inches of {weather} {when} |
  it gets {how} {warm} in {place} | i like the {weather} but {who} doesn't | the
  {weather} was {how} {bad} {when} | it's about {number} degrees and {how} {warm}

[family]
kid: baby | boy | girl | teenager | little one
ask: do you have any children | how old is your {kid} | does your family live in
  {place}
tell: we have {number} children and a {kid} | {who} lives in {place} with the {kid} |
  our {kid} is {number} years old | {who} got married {when} | we see {who} {often} |
  {who} and i moved to {place} {when}

[pets]
pet: dog | cat | puppy | bird | horse | rabbit | fish
color: black | white | brown | gray | yellow
ask: do you have a {pet} | what kind of {pet} is it | does the {pet} sleep in the
  house
tell: we have a {color} {pet} and a {pet} | our {pet} is {number} years old | {who}
  takes the {pet} for a walk {often} | the {pet} ate my shoes {when} | a {pet} is
  {how} {good} for the kids | {who} found a {color} {pet} {when}

[cooking]
food: chicken | fish | rice | soup | bread | salad | cake | beans | pizza | steak |
  potatoes
ask: do you like to cook {food} | what do you make for dinner | how long do you cook
  the {food}
tell: i make {food} with {food} {often} | {who} cooked some {food} {when} | you put
  the {food} in the oven for {number} minutes | {food} is {how} {good} with a little
  butter | we go out and eat {food} {often} | the {food} was {how} {bad} {when}

[cars]
car: car | truck | van | ford | honda | toyota | engine
ask: what kind of {car} do you drive | is your {car} old | would you buy a new {car}
tell: i bought a used {car} {when} | the {car} has {number} thousand miles on it |
  {who} drives a {car} to work {often} | the {car} broke down {when} | a new {car} is
  {how} {bad} these days | {who} can fix the {car} in {number} hours

[sports]
sport: football | baseball | basketball | tennis | golf | hockey
ask: do you play any {sport} | did you watch the {sport} game {when} | who is your
  favorite {sport} team
tell: i watch {sport} on TV {often} | {who} played {sport} in college | the team from
  {place} won {number} games | we lost the {sport} game {when} | {sport} is {how}
  {good} to play | {who} and i play {sport} {often}

[work]
job: teacher | nurse | lawyer | programmer | engineer | farmer
ask: what kind of work do you do | do you like your job | how far do you drive to work
tell: i work as a {job} in {place} | {who} is a {job} and works {number} hours a day |
  my boss is {how} {good} to us | the pay was {how} {bad} {when} | i started a new job
  {when} | we work from home {often} | {who} used to work for {company} in {place} |
  they gave everybody a PC at {company} {when}

[travel]
trip: beach | mountains | lake | city | desert | park
ask: where did you go on vacation | have you been to {place} | do you like the {trip}
tell: we drove to the {trip} {when} | {who} flew to {place} {when} | we stayed in a
  tent near the {trip} for {number} days | the {trip} in {place} is {how} {good} | we
  go camping by the {trip} {often} | the hotel was {how} {bad} and far from the {trip}
  | {who} has never been outside of the US

[movies]
movie: movie | comedy | western | cartoon | show | mystery
ask: have you seen a {good} {movie} lately | what {movie} do you like best | do you go
  to the theater {often}
tell: i saw a {movie} with {who} {when} | the {movie} was {how} {good} | the {movie}
  was {how} {bad} and {number} hours long | {who} rents a {movie} {often} | it's a
  {movie} about a {job} from {place} | we fell asleep in the {movie} {when} | {who}
  got us a VCR and a new TV {when}
job: doctor | soldier | teacher | lawyer | farmer

[music]
music: jazz | rock | country | classical | folk
instrument: piano | guitar | drums | violin | trumpet
ask: what kind of music do you listen to | do you play the {instrument} | did you ever
  go to a {music} concert
tell: i listen to {music} music {often} | {who} plays the {instrument} in a {music}
  band | i took {instrument} lessons for {number} years | the concert in {place} was
  {how} {good} | {who} bought a {instrument} {when} | {think} {music} music is {how}
  {bad} | the kids watch MTV {often}

[the garden]
plant: tomatoes | roses | corn | peppers | flowers | trees
ask: do you grow {plant} | how big is your yard | who mows the lawn at your house
tell: we planted {plant} and {plant} {when} | {who} waters the {plant} {often} | i
  picked {number} baskets of {plant} {when} | the {plant} are {how} {good} this year |
  the bugs ate our {plant} {when} | we painted the house {when} and cut the {plant}
"""


def _grammar(text: str) -> Grammar:
    """Read `symbol: alternative | alternative`; indented lines go on."""
    lines = text.strip().replace("\n ", " ").split("\n")
    symbols = (line.split(": ", 1) for line in lines)
    return {
        symbol: [" ".join(each.split()) for each in own.split("|")]
        for symbol, own in symbols
    }


SHARED = _grammar(_SHARED)
TOPICS = {
    name.strip("[]"): _grammar(own)
    for name, own in (part.split("\n", 1) for part in _TOPICS.strip().split("\n\n"))
}


Side = Literal["A", "B"]

# How often an utterance has what written text does not have.
_OPENER, _HESITATION, _PARTIAL, _REPEAT = 0.25, 0.25, 0.06, 0.06
_LAUGHED_WORD, _LAUGHTER, _NOISE = 0.02, 0.04, 0.04
_BACKCHANNEL = 0.35
_EXCHANGES_PER_TOPIC = 5


@dataclass(frozen=True)
class Variety:
    """How much of the grammar is used; less of it is easier to learn.

    It has the numbers of topics, and of alternatives of each symbol, the first ones.
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
    """One utterance, with words and MS98 marks, as `uh`, `th[at]-`, `[noise]`.

    `gap` is in seconds after the end of everything said before; it is negative if the
    speaker starts before the other one has ended.
    """

    side: Side
    text: str
    gap: float


def invent_dialogue(
    names: tuple[str, str], turns: int, rng: random.Random, variety: Variety = ALL
) -> list[Turn]:
    """Invent a conversation: the utterances in the order in which they start."""
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
