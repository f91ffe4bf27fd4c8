"""A synthetic corpus in the form of Switchboard-1 and of the Hub5 2000 evaluation.

Its directories, names and file formats are those of LDC97S62 (with its MS98 transcripts
and conv.tab), LDC2002S09 and LDC2002T43, so that whatever reads these reads it, too.
Each conversation has a seed of its own, so that the corpus does not depend on the
number of processes that make it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import numpy as np

from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.hub5.stm import (
    IGNORED,
    Reference,
    Span,
    write_stm,
)
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
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import ACRONYMS, HESITATIONS
from espnet_distopt.recipes.corpora.mini_swbd.plan import (
    CALLHOME,
    SWBD,
    TRAIN,
    Plan,
    Sizes,
    check_sizes,
    plan_corpus,
)
from espnet_distopt.recipes.corpora.parallel import do_shares

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


def write_side(root: Path, number: str, side: str, conversation: Conversation) -> None:
    """Write a side's transcript below `root`, at its place.

    The time between utterances is a segment `[silence]`.
    """
    write_transcript(root, number, side, _segments(conversation, side))


def _segments(conversation: Conversation, side: str) -> Iterator[Ms98Segment]:
    end = 0.0
    for turn in conversation.turns:
        if turn.side != side:
            continue
        if turn.start > end:
            yield Ms98Segment(end, turn.start, "[silence]")
        yield Ms98Segment(turn.start, turn.end, turn.text)
        end = turn.end
    yield Ms98Segment(end, conversation.seconds, "[silence]")


def write_acronyms(root: Path) -> None:
    """Write a dictionary that has only letters and words in capitals."""
    entries: dict[str, tuple[str, ...]] = {**_WORDS}
    for word in (*ascii_uppercase, *ACRONYMS):
        entries[word] = tuple(
            phone for letter in word.lower() for phone in LETTER_PHONES[letter]
        )
    write_dictionary(root, (Entry(*each) for each in sorted(entries.items())))


def write_callers(path: Path, plans: Iterable[Plan]) -> None:
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


@dataclass(frozen=True)
class Share:
    """The conversations that one process makes, and the directory of the corpus."""

    directory: Path
    plans: Sequence[Plan]


def make_corpus(
    out: Path,
    sizes: Sizes,
    seed: int,
    nj: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Recorded]:
    """Write the corpus into the directory `out`, whole or not at all.

    Args:
        out: The directory of the corpus, which is replaced if an earlier run made it.
        sizes: How large the corpus is.
        seed: Decides everything; equal sizes and seeds give equal files.
        nj: The number of processes.
        progress: Called with the number of conversations done, and of all.

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
        shares = [Share(directory, plans[job::nj]) for job in range(nj)]
        made = do_shares(record_share, shares, len(plans), progress)
        recorded = [made[place % nj][place // nj] for place in range(len(plans))]
        callers = [plan for plan in plans if plan.part == TRAIN]
        write_callers(directory / _SWB1 / "tables" / "conv.tab", callers)
        write_acronyms(directory / _TRANSCRIPTS)
        _write_evaluation(directory, [r for r in recorded if r.plan.part != TRAIN])
        note = f"synthetic speech, made by make_mini_swbd\nseed {seed}\n{sizes}\n"
        (directory / "mini_swbd.txt").write_text(note)
    return recorded


def record_share(share: Share, progress: Callable[[int], None]) -> list[Recorded]:
    """Make the conversations of one process."""
    recorded = []
    for plan in share.plans:
        recorded.append(_record_one(share.directory, plan))
        progress(1)
    return recorded


def _record_one(directory: Path, plan: Plan) -> Recorded:
    line: Callable[[np.random.Generator], TelephoneLine]
    line = bad_line if plan.part == CALLHOME else good_line
    first, second = plan.people
    speakers = first.speaker, second.speaker
    conversation = record(speakers, plan.turns, line, plan.seed, plan.variety)
    _write_audio(directory / _place(plan), plan, conversation)
    if plan.part == TRAIN:
        for side in ("A", "B"):
            root = directory / _TRANSCRIPTS
            write_side(root, str(plan.number), side, conversation)
    return Recorded(plan, conversation.turns)


def _place(plan: Plan) -> Path:
    if plan.part == TRAIN:
        return _SWB1 / f"swb1_d{plan.disc}" / "data" / f"{plan.name}.sph"
    return _EVALUATION / f"{plan.name}.sph"


def _write_audio(path: Path, plan: Plan, conversation: Conversation) -> None:
    """Write SPHERE of 8-bit mu-law, which can express the samples exactly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    samples = np.round(conversation.samples * 32768).astype(np.int16)
    fields = {
        "database_id": "mini_swbd",
        "conversation_id": str(plan.number),
    }
    write_sphere(path, samples, SAMPLE_RATE, coding="ulaw", fields=fields)


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
