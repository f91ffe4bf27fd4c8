"""How the phones of an alignment are compared with those of the synthesizer."""

import numpy as np
import phone_times
import pytest
from phone_times import Compared, Sentence

from espnet_distopt.corpora.mini_swbd.espeak_events import TimedPhoneme
from espnet_distopt.hmm.states import PhoneStates

STATES = PhoneStates(("SIL", "a", "t", "u"))


def alignment(*phones: tuple[str, int]) -> np.ndarray:
    pdfs = [np.linspace(0, 2.99, n).astype(int) + STATES.pdfs(p)[0] for p, n in phones]
    return np.concatenate(pdfs).astype(np.int32)


def sentence(*phones: tuple[str, float]) -> Sentence:
    return Sentence(["at", "to"], list(phones), np.zeros((1, 39), np.float32))


def test_boundaries_of_matched_phones_have_a_distance_and_others_are_missed() -> None:
    spoken = {
        "exact": sentence(("a", 0.05), ("t", 0.10), ("t", 0.20), ("u", 0.25)),
        "other": sentence(("a", 0.05), ("t", 0.10), ("t", 0.20), ("@", 0.25)),
        "longer": sentence(("a", 0.05), ("t", 0.10), ("?", 0.15), ("t", 0.2)),
        "none": sentence(("a", 0.05)),
    }
    pdfs = alignment(("SIL", 5), ("a", 5), ("t", 12), ("t", 3), ("u", 4))
    found = phone_times.compare(
        spoken, dict.fromkeys(("exact", "other", "longer"), pdfs), STATES
    )
    assert found.phones == 13
    late = [*[0, 0, 0.02, 0] * 2, 0, 0, 0.07, 0.05]
    assert found.distances == pytest.approx(late)
    assert (found.beyond(60), found.beyond(30)) == (2, 3)


def test_the_table_counts_missed_boundaries_as_too_far_away() -> None:
    speakers = [Compared(4, [0.0, 0.015, 0.045]), Compared(4, [0.0, 0.0, 0.0, 0.0])]
    line = phone_times.row("voices", speakers)
    shares = "62.5% | 75.0% | 75.0% (50.0-100.0) | 87.5%"
    assert line == f"| voices | 2 | 8 | {shares} | 0.0 ms | 12.5% |"


def test_pauses_and_marks_of_stress_are_no_phones() -> None:
    phonemes = [TimedPhoneme(n, t) for n, t in (("'a", 0.0), ("_:", 0.1), ("t", 0.2))]
    assert phone_times.phone_starts(phonemes, 1.0) == [("a", 1.0), ("t", 1.2)]


def test_a_speaker_says_sentences_whose_phones_lie_within_them() -> None:
    [speaker] = phone_times.known_speakers(1, seed=0)
    said = phone_times.sentences(speaker, phone_times.good_line, "seed")
    assert len(said) == phone_times.SENTENCES
    for each in said:
        starts = [start for _, start in each.phones]
        assert starts == sorted(starts)
        assert 0.05 <= starts[0] <= 0.25 < starts[-1] < len(each.features) / 100
