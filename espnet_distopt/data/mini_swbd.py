"""A synthetic corpus on the discs of Switchboard-1 and of the Hub5 2000 evaluation.

Same directories, names and file formats as LDC97S62 with its MS98 transcripts,
LDC2002S09 and LDC2002T43, so that everything downstream reads either. Each
conversation has a seed of its own: the corpus does not depend on the number of
processes that make it.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from espnet_distopt.data.conversation import Conversation, TimedTurn, record
from espnet_distopt.data.hub5 import Reference, Span, write_pem, write_stm
from espnet_distopt.data.kaldi_dir import whole_directory
from espnet_distopt.data.mini_hub5 import STM_HEADER, glm_text, reference_text
from espnet_distopt.data.mini_plan import (
    CALLHOME,
    SWBD,
    TRAIN,
    Plan,
    Sizes,
    check_sizes,
    plan_corpus,
)
from espnet_distopt.data.ms98 import Segment, plain_words, write_transcript
from espnet_distopt.data.speech_set import SpeechSet, Utterance, utterance_id
from espnet_distopt.data.telephone import SAMPLE_RATE, Line, bad_line, good_line
from espnet_distopt.errors import InputError

_AUDIO = Path("swb1", "swb1_d1", "data")
_TRANSCRIPTS = Path("swb1", "transcriptions", "swb_ms98_transcriptions")
_EVAL_AUDIO = Path("hub5e_00", "english")
_REFERENCE = Path("reference")


@dataclass(frozen=True)
class Recorded:
    """A conversation that has been written: its plan and who said what when."""

    plan: Plan
    turns: list[TimedTurn]


def make_corpus(
    out: Path,
    sizes: Sizes,
    seed: int,
    nj: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Recorded]:
    """Write the corpus into the directory `out`, whole or not at all.

    Args:
        out: replaced if an earlier run has made it.
        sizes: how large.
        seed: of everything; equal sizes and seeds give equal files.
        nj: number of processes.
        progress: called with the number of conversations done, and of all.

    Returns:
        All conversations, training first.

    Raises:
        InputError: impossible sizes, or `out` is a directory of somebody else's.
    """
    check_sizes(sizes)
    if nj < 1:
        raise InputError(f"--nj is {nj}, expected at least 1")
    plans = plan_corpus(sizes, seed)
    with whole_directory(out, marker="mini_swbd.txt") as directory:
        recorded = []
        for conversation in _record_all(directory, plans, nj):
            recorded.append(conversation)
            progress(len(recorded), len(plans))
        _write_evaluation(directory, [r for r in recorded if r.plan.part != TRAIN])
        note = f"synthetic speech, made by make_mini_swbd\nseed {seed}\n{sizes}\n"
        (directory / "mini_swbd.txt").write_text(note)
    return recorded


def _record_all(directory: Path, plans: list[Plan], nj: int) -> Iterator[Recorded]:
    work = partial(_record_one, directory)
    if nj == 1:
        yield from map(work, plans)
        return
    # The parent alone answers Ctrl-C; spawned processes share no state with it.
    with ProcessPoolExecutor(
        max_workers=nj,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    ) as pool:
        yield from pool.map(work, plans)


def _record_one(directory: Path, plan: Plan) -> Recorded:
    line: Callable[[np.random.Generator], Line]
    line = bad_line if plan.part == CALLHOME else good_line
    conversation = record(plan.speakers, plan.turns, line, plan.seed)
    audio = directory / (_AUDIO if plan.part == TRAIN else _EVAL_AUDIO)
    audio.mkdir(parents=True, exist_ok=True)
    soundfile.write(
        audio / f"{plan.name}.sph",
        conversation.samples,
        SAMPLE_RATE,
        format="NIST",
        subtype="ULAW",
    )
    if plan.part == TRAIN:
        _write_ms98(directory / _TRANSCRIPTS, str(plan.number), conversation)
    return Recorded(plan, conversation.turns)


def _write_ms98(root: Path, number: str, conversation: Conversation) -> None:
    """Write both sides' transcripts; what lies between utterances is [silence]."""
    for side in ("A", "B"):
        segments: list[Segment] = []
        end = 0.0
        for turn in conversation.turns:
            if turn.side != side:
                continue
            if turn.start > end:
                segments.append(Segment(end, turn.start, "[silence]"))
            segments.append(Segment(turn.start, turn.end, turn.text))
            end = turn.end
        segments.append(Segment(end, conversation.seconds, "[silence]"))
        write_transcript(root, number, side, segments)


def _write_evaluation(directory: Path, recorded: list[Recorded]) -> None:
    """Write PEM, STM and GLM; an utterance of noises only is not evaluated."""
    references = [
        Reference(
            Span(r.plan.name, turn.side, round(turn.start, 2), round(turn.end, 2)),
            "O,CHE" if r.plan.part == CALLHOME else "O,SWB",
            reference_text(turn.text),
        )
        for r in recorded
        for turn in r.turns
        if plain_words(turn.text)
    ]
    references.sort(key=lambda r: (r.span.file, r.span.channel, r.span.start))
    write_pem(directory / _EVAL_AUDIO / "hub5e_00.pem", (r.span for r in references))
    reference = directory / _REFERENCE
    reference.mkdir()
    write_stm(reference / "hub5e00.english.000405.stm", STM_HEADER, references)
    (reference / "en20000405_hub5.glm").write_text(glm_text(), encoding="utf-8")


def as_sets(recorded: Sequence[Recorded]) -> list[SpeechSet]:
    """The parts of the corpus, for a summary: utterances with words only."""
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
    text = " ".join(plain_words(turn.text))
    return Utterance(name, recording, turn.side, turn.start, turn.end, text)
