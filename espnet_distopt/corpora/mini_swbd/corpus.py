"""A synthetic corpus in the form of Switchboard-1 and of the Hub5 2000 evaluation.

Its directories, names and file formats are those of LDC97S62 (with its MS98 transcripts
and conv.tab), LDC2002S09 and LDC2002T43, so that whatever reads these reads it, too.
Each conversation has a seed of its own, so that the corpus does not depend on the
number of processes that make it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from espnet_distopt.corpora.audio.sphere import write_sphere
from espnet_distopt.corpora.hub5.pem import Span, write_pem
from espnet_distopt.corpora.hub5.stm import Reference, write_stm
from espnet_distopt.corpora.kaldi.speech_set import SpeechSet, Utterance, utterance_id
from espnet_distopt.corpora.ldc.ms98 import plain_words
from espnet_distopt.corpora.mini_swbd.conversation import (
    Conversation,
    TimedTurn,
    record,
)
from espnet_distopt.corpora.mini_swbd.hub5 import STM_HEADER, glm_text, reference_text
from espnet_distopt.corpora.mini_swbd.ms98 import (
    write_acronyms,
    write_callers,
    write_side,
)
from espnet_distopt.corpora.mini_swbd.phrases import ACRONYMS
from espnet_distopt.corpora.mini_swbd.plan import (
    CALLHOME,
    SWBD,
    TRAIN,
    Plan,
    Sizes,
    check_sizes,
    plan_corpus,
)
from espnet_distopt.corpora.mini_swbd.telephone import (
    SAMPLE_RATE,
    TelephoneLine,
    bad_line,
    good_line,
)
from espnet_distopt.corpora.parallel import do_shares
from espnet_distopt.errors import InputError
from espnet_distopt.files.whole_directory import whole_directory

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
    """Write PEM, STM and GLM, in which an utterance without words is not scored."""
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
    write_pem(directory / _EVALUATION / "hub5e_00.pem", (r.span for r in references))
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
