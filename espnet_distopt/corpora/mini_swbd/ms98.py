"""Writes what comes with the synthetic training discs: the MS98 files and conv.tab.

The synthesizer does not tell when a word is spoken. So the word files divide the time
of an utterance among its words by their numbers of letters.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from pathlib import Path
from string import ascii_uppercase

from espnet_distopt.corpora.ldc.acronyms import LETTER_PHONES
from espnet_distopt.corpora.ldc.conv_tab import write_conv_tab
from espnet_distopt.corpora.ldc.ms98 import (
    Entry,
    Ms98Segment,
    Ms98Word,
    write_dictionary,
    write_transcript,
    write_words,
)
from espnet_distopt.corpora.mini_swbd.conversation import Conversation
from espnet_distopt.corpora.mini_swbd.phrases import ACRONYMS
from espnet_distopt.corpora.mini_swbd.plan import Plan

# It is in capitals, and yet no acronym.
_WORDS = {"NASA": ("n", "ae", "s", "ax")}


def write_side(root: Path, number: str, side: str, conversation: Conversation) -> None:
    """Write a side's transcript and word file below `root`, at their places.

    The time between utterances is a segment `[silence]`.
    """
    segments = list(_segments(conversation, side))
    write_transcript(root, number, side, segments)
    words = (spread(segment, rank) for rank, segment in enumerate(segments, start=1))
    write_words(root, number, side, chain.from_iterable(words))


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


def spread(segment: Ms98Segment, number: int) -> Iterator[Ms98Word]:
    """Yield the words of a segment, whose time is divided by numbers of letters."""
    words = segment.text.split()
    shares = list(accumulate((len(word) for word in words), initial=0))
    length = (segment.end - segment.start) / shares[-1]
    edges = [segment.start + length * share for share in shares]
    edges[-1] = segment.end
    for word, start, end in zip(words, edges, edges[1:], strict=False):
        yield Ms98Word(number, start, end, word)


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
