"""A synthetic corpus in the form of Switchboard-1 and of the Hub5 2000 evaluation.

Its directories, names and file formats are those of LDC97S62 (with its MS98 transcripts
and conv.tab), LDC2002S09 and LDC2002T43, so that whatever reads these reads it, too.
Each conversation has a seed of its own, so that the corpus does not depend on the
number of processes that make it.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.hub5.stm import IGNORED, Reference, Span, write_stm
from espnet_distopt.recipes.corpora.kaldi.directory import (
    SpeechSet,
    Utterance,
    utterance_id,
)
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    LETTER_PHONES,
    Entry,
    Ms98Segment,
    plain_word,
    plain_words,
    write_dictionary,
    write_transcript,
)
from espnet_distopt.recipes.corpora.ldc.swbd import write_conv_tab
from espnet_distopt.recipes.corpora.mini_swbd.conversation import (
    SAMPLE_RATE,
    Conversation,
    TelephoneLine,
    TimedTurn,
    bad_line,
    good_line,
    record,
)
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import (
    ACRONYMS,
    ALL,
    HESITATIONS,
    Variety,
)
from espnet_distopt.recipes.corpora.mini_swbd.synthesis import Speaker, Voice
from espnet_distopt.recipes.corpora.parallel import do_shares

# These variants of espeak-ng sound like people, not like robots, whispers or croaks.
# Training has many, so that some of them resemble the unseen ones.
_KNOWN_ACCENTS = ("en-us", "en-us-nyc", "en", "en-gb-x-rp")
_KNOWN_MEN = (
    "m1 m2 m3 m4 m6 m7 m8 Andy Mario adam Diogo Gene Hugo Lee Marco Michael antonio "
    "benjamin david ed edward ian iven john marcelo michel miguel norbert paul pedro "
    "sandro travis victor zac"
)
_KNOWN_WOMEN = (
    "f1 f2 f3 f4 f5 Alicia Andrea Annie anika aunty belinda linda steph steph2"
)
_UNSEEN_ACCENTS = ("en-us", "en-gb-x-rp")
_UNSEEN_MEN = ("max", "rob", "robert", "edward2")
_UNSEEN_WOMEN = ("shelby", "steph3")


_MEN_NAMES = ("john", "mike", "david", "bob", "jim", "steve", "paul", "tom")
_WOMEN_NAMES = ("mary", "linda", "susan", "karen", "anna", "lisa", "jane", "carol")


def known_speakers(count: int, seed: int) -> list[Speaker]:
    """Return the people of training, who also talk in the Switchboard test half."""
    men, women = _KNOWN_MEN.split(), _KNOWN_WOMEN.split()
    return _draw(count, f"known {seed}", _KNOWN_ACCENTS, men, women, spread=8)


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
        speakers.append(Speaker(_FIRST_PIN + number, rng.choice(names), voice))
    return speakers


TRAIN, SWBD, CALLHOME = "train", "swbd", "callhome"
_FIRST = {TRAIN: 2001, SWBD: 4390, CALLHOME: 4156}
_FIRST_PIN = 1000
_DISCS = 4


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the corpus is; the command has an option for each number."""

    conversations: int = 200
    test_conversations: int = 6
    turns: int = 66
    speakers: int = 200
    test_speakers: int = 10
    topics: int = ALL.topics
    alternatives: int = ALL.alternatives


Pair = tuple[Speaker, Speaker]


@dataclass(frozen=True)
class Plan:
    """A conversation to make: who talks on side A and on side B, and how much.

    The part is TRAIN, or the test half SWBD or CALLHOME. A test half has one disc. The
    seed decides what is said, and how.
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
    known = known_speakers(min(sizes.speakers, 2 * sizes.conversations), seed)
    unseen = unseen_speakers(sizes.test_speakers, seed)
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


def _trained(people: list[Speaker], train: list[Pair]) -> list[Speaker]:
    """Return the people who are not in the first tenth, which becomes train_dev."""
    dev = [person for pair in train[: 1 + len(train) // 10] for person in pair]
    rest = [person for person in people if person not in dev]
    return rest if len(rest) > 1 else people


def _pairs(people: list[Speaker], count: int, rng: random.Random) -> list[Pair]:
    """Return pairs in which all people talk once before anyone talks again."""
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


# It is in capitals, and yet no acronym.
_WORDS = {"NASA": ("n", "ae", "s", "ax")}


def _segments(conversation: Conversation, side: str) -> Iterator[Ms98Segment]:
    """Yield a side's segments, `[silence]` between its utterances."""
    end = 0.0
    for turn in conversation.turns:
        if turn.side != side:
            continue
        if turn.start > end:
            yield Ms98Segment(end, turn.start, "[silence]")
        yield Ms98Segment(turn.start, turn.end, turn.text)
        end = turn.end
    yield Ms98Segment(end, conversation.seconds, "[silence]")


def _write_acronyms(root: Path) -> None:
    """Write a dictionary that has only letters and words in capitals."""
    entries: dict[str, tuple[str, ...]] = {**_WORDS}
    for word in (*ascii_uppercase, *ACRONYMS):
        entries[word] = tuple(
            phone for letter in word.lower() for phone in LETTER_PHONES[letter]
        )
    write_dictionary(root, (Entry(*each) for each in sorted(entries.items())))


def _write_callers(path: Path, plans: Iterable[Plan]) -> None:
    """Write conv.tab, which has the PINs of the people in each conversation."""
    pins = {
        f"{plan.name}-{side}": str(person.pin)
        for plan in plans
        for side, person in zip("AB", plan.people, strict=True)
    }
    write_conv_tab(path, pins)


_SWB1 = Path("swb1")
_TRANSCRIPTS = _SWB1 / "transcriptions" / "swb_ms98_transcriptions"
_EVALUATION = Path("hub5e_00", "english")
_REFERENCE = Path("2000_hub5_eng_eval_tr", "reference")


@dataclass(frozen=True)
class Recorded:
    """A conversation that has been written: its plan, and its utterances."""

    plan: Plan
    turns: list[TimedTurn]


Share = tuple[Path, Sequence[Plan]]
"""The directory of the corpus, and the conversations that one process makes."""


def make_corpus(
    out: Path,
    sizes: Sizes,
    seed: int,
    nj: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Recorded]:
    """Write the corpus into the directory `out`, whole or not at all.

    Returns:
        All conversations, those for training first.

    Raises:
        InputError: The sizes are impossible, or `out` holds something else.
    """
    check_sizes(sizes)
    if nj < 1:
        raise InputError(f"--nj is {nj}, expected at least 1")
    plans = plan_corpus(sizes, seed)
    with whole_directory(out, marker="mini_swbd.txt") as directory:
        shares = [(directory, plans[job::nj]) for job in range(nj)]
        made = do_shares(_record_share, shares, len(plans), progress)
        recorded = [made[place % nj][place // nj] for place in range(len(plans))]
        callers = [plan for plan in plans if plan.part == TRAIN]
        _write_callers(directory / _SWB1 / "tables" / "conv.tab", callers)
        _write_acronyms(directory / _TRANSCRIPTS)
        _write_evaluation(directory, [r for r in recorded if r.plan.part != TRAIN])
        note = f"synthetic speech, made by make_mini_swbd\nseed {seed}\n{sizes}\n"
        (directory / "mini_swbd.txt").write_text(note)
    return recorded


def _record_share(share: Share, progress: Callable[[int], None]) -> list[Recorded]:
    """Make the conversations of one process."""
    recorded = []
    directory, plans = share
    for plan in plans:
        recorded.append(_record_one(directory, plan))
        progress(1)
    return recorded


def _record_one(directory: Path, plan: Plan) -> Recorded:
    line: Callable[[np.random.Generator], TelephoneLine]
    line = bad_line if plan.part == CALLHOME else good_line
    conversation = record(plan.people, plan.turns, line, plan.seed, plan.variety)
    _write_audio(directory / _place(plan), plan, conversation)
    if plan.part == TRAIN:
        for side in ("A", "B"):
            segments = _segments(conversation, side)
            number = str(plan.number)
            write_transcript(directory / _TRANSCRIPTS, number, side, segments)
    return Recorded(plan, conversation.turns)


def _place(plan: Plan) -> Path:
    if plan.part == TRAIN:
        return _SWB1 / f"swb1_d{plan.disc}" / "data" / f"{plan.name}.sph"
    return _EVALUATION / f"{plan.name}.sph"


def _write_audio(path: Path, plan: Plan, conversation: Conversation) -> None:
    """Write SPHERE of 8-bit mu-law, which can express the samples exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.round(conversation.samples * 32768).astype(np.int16)
    name, number = "mini_swbd", str(plan.number)
    write_sphere(path, samples, SAMPLE_RATE, database_id=name, conversation_id=number)


def _write_evaluation(directory: Path, recorded: list[Recorded]) -> None:
    """Write STM and GLM, in which an utterance without words is not scored."""
    references = [
        Reference(
            Span(r.plan.name, turn.side, round(turn.start, 2), round(turn.end, 2)),
            "O,CHE" if r.plan.part == CALLHOME else "O,SWB",
            reference_text(turn.text),
        )
        for r in recorded
        for turn in r.turns
    ]
    references.sort(key=lambda r: (r.span.file, r.span.channel, r.span.start))
    reference = directory / _REFERENCE
    reference.mkdir(parents=True)
    write_stm(reference / "hub5e00.english.000405.stm", STM_HEADER, references)
    (reference / "en20000405_hub5.glm").write_text(glm_text(), encoding="utf-8")


def as_sets(recorded: Sequence[Recorded]) -> list[SpeechSet]:
    """Return the parts of the corpus for a summary; only utterances with words."""
    return [
        SpeechSet(
            part,
            {},
            tuple(
                said
                for r in recorded
                if r.plan.part == part
                for turn in r.turns
                if (said := _utterance(r.plan.name, turn)).text
            ),
        )
        for part in (TRAIN, SWBD, CALLHOME)
    ]


def _utterance(recording: str, turn: TimedTurn) -> Utterance:
    name = utterance_id(f"{recording}-{turn.side}", turn.start, turn.end)
    text = " ".join(plain_words(turn.text, ACRONYMS))
    return Utterance(name, recording, turn.side, turn.start, turn.end, text)
