"""Evaluation sets: Hub5 2000 and RT-03, and references that do not fit the speech."""

from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.ldc.evaluation import (
    Evaluation,
    read_eval2000,
    read_rt03,
)
from espnet_distopt.recipes.corpora.mini_swbd.corpus import glm_text

STM = """\
;; LABEL "O" "Overall" "Overall"
;; LABEL "SWB" "Switchboard" "of known speakers"
sw_4390 A sw_4390_A 1.00 2.00 <O,SWB> OH (%HESITATION) (TH-) YEAH I. B. M.'S
sw_4390 A sw_4390_A 2.10 3.00 <O,SWB> ((%HESITATION)
sw_4390 A sw_4390_A 4.00 4.50 <O,SWB> IGNORE_TIME_SEGMENT_IN_SCORING
sw_4390 B sw_4390_B 0.05 4.99 <O,SWB> <B_ASIDE> RIGHT <E_ASIDE>
en_4156 A en_4156_A1 1.00 2.00 <O>  { WE ARE / WE'RE } HERE
"""


@pytest.fixture
def discs(tmp_path: Path) -> Path:
    speech = tmp_path / "speech" / "hub5e_00" / "english"
    text = tmp_path / "text" / "2000_hub5_eng_eval_tr" / "reference"
    speech.mkdir(parents=True)
    text.mkdir(parents=True)
    for name in ("sw_4390", "en_4156"):
        silence = np.zeros((40000, 2), dtype=np.int16)
        write_sphere(speech / f"{name}.sph", silence, 8000)
    (text / "hub5e00.english.000405.stm").write_text(STM)
    (text / "en20000405_hub5.glm").write_text(glm_text())
    return tmp_path


def read(discs: Path) -> Evaluation:
    return read_eval2000(discs / "speech", discs / "text", lambda line: None)


def test_every_segment_that_is_scored_is_an_utterance(discs):
    evaluation = read(discs)
    assert [(u.id, u.text) for u in evaluation.speech.utterances] == [
        ("en_4156-A_000100-000200", "we are here"),
        ("sw_4390-A_000100-000200", "oh th- yeah i b m's"),
        ("sw_4390-A_000210-000300", ""),
        ("sw_4390-B_000005-000499", "right"),
    ]
    assert evaluation.stm == (
        STM.replace("((", "(").replace("<B_ASIDE> ", "").replace(" <E_ASIDE>", "")
    )
    assert evaluation.glm.read_text() == glm_text()


def test_audio_is_padded_up_to_half_the_gap_and_the_ends(discs):
    _, first, _, last = read(discs).speech.utterances
    assert (first.start, first.end) == (0.9, 2.05)
    assert (last.start, last.end) == (0.0, 5.0)


def test_another_number_of_conversations_is_told(discs):
    lines: list[str] = []
    read_eval2000(discs / "speech", discs / "text", lines.append)
    [warning] = lines
    assert "2 conversations, the published set has 40" in warning


def edit(discs: Path, pattern: str, old: str, new: str) -> None:
    path = next(discs.rglob(pattern))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def refuses(reads, discs: Path, pattern: str, old: str, new: str, message: str) -> None:
    edit(discs, pattern, old, new)
    with pytest.raises(InputError, match=message):
        reads(discs)


EDITS = {
    "stm_line": ("*.stm", "1.00 2.00 <O,S", "3.00 2.00 <O,S", r"stm:3: expected 0 <="),
    "stm_mark": ("*.stm", "WE'RE }", "WE'RE", r"stm:7: '{' without '}'"),
    "channel": ("*.stm", "en_4156 A", "en_4156 1", "stm:7: expected channel A or B, g"),
    "recording": ("*.stm", "en_4156", "en_4157", "stm:7: no recording en_4157.sph"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_references_that_are_bad_or_do_not_fit_the_recordings(discs, kind):
    refuses(read, discs, *EDITS[kind])


def test_segments_past_the_end_are_cut_or_left_out_and_counted(discs):
    edit(discs, "*.stm", "0.05 4.99", "0.05 6.00")
    edit(discs, "*.stm", "2.10 3.00", "5.10 7.00")
    edit(discs, "*.stm", "4.00 4.50", "7.00 7.50")
    edit(discs, "*.stm", "((%HESITATION)", "YES")
    told: list[str] = []
    evaluation = read_eval2000(discs / "speech", discs / "text", told.append)
    utterances = {u.id: u.end for u in evaluation.speech.utterances}
    assert utterances["sw_4390-B_000005-000600"] == 5.0
    assert "sw_4390-A_000510-000700" not in utterances
    assert "5.10 7.00 <O,SWB> YES" in evaluation.stm
    assert told[-1].endswith("stm:4: ends at 7.0 s, but sw_4390 has only 5.00 s")
    assert (
        "3 of 5 segments reach past the end of their recording; 1 are cut" in told[-1]
    )


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("*.stm", "no reference"),
        ("*.glm", "no mapping rules"),
        ("sw_4390.sph", "stm:3: no recording sw_4390.sph"),
    ],
)
def test_missing_files(discs, file, message):
    next(discs.rglob(file)).unlink()
    with pytest.raises(InputError, match=message):
        read(discs)


# RT-03: channels are numbers, and each conversation has a reference of its own.

HEADER = """\
;; CATEGORY "0" "" ""
;; LABEL "O" "Overall" "Overall"
"""
FISHER = """\
fsh_60262 1 inter_segment_gap 0.000 1.200 <O>
fsh_60262 1 fsh_60262_A 1.200 2.345 <O> ((%HESITATION) right
fsh_60262 1 inter_segment_gap 2.345 9999.0 <O>
fsh_60262 2 fsh_60262_B 1.000 2.000 <O> IGNORE_TIME_SEGMENT_IN_SCORING
"""
SWITCHBOARD = "sw_31415 2 sw_31415_B 0.500 1.500 <O> Yes\n"
JOINED = (
    HEADER
    + """\
fsh_60262 A fsh_60262_A 1.200 2.345 <O> (%HESITATION) right
fsh_60262 B fsh_60262_B 1.000 2.000 <O> IGNORE_TIME_SEGMENT_IN_SCORING
sw_31415 B sw_31415_B 0.500 1.500 <O> Yes
"""
)


@pytest.fixture
def disc(tmp_path: Path) -> Path:
    audio = tmp_path / "rt_03" / "data" / "audio" / "eval03" / "english" / "cts"
    text = tmp_path / "rt_03" / "data" / "references" / "eval03" / "english" / "cts"
    rules = tmp_path / "rt_03" / "data" / "trans_rules"
    for directory in (audio, text, rules):
        directory.mkdir(parents=True)
    for name in ("fsh_60262", "sw_31415"):
        silence = np.zeros((24000, 2), dtype=np.int16)
        write_sphere(audio / f"{name}.sph", silence, 8000)
    (text / "fsh_60262.stm").write_text(HEADER + FISHER)
    (text / "sw_31415.stm").write_text(HEADER + SWITCHBOARD)
    (rules / "en20030506.glm").write_text(glm_text())
    return tmp_path / "rt_03"


def read_disc(disc: Path) -> Evaluation:
    return read_rt03(disc, lambda line: None)


def test_files_are_joined_with_channels_as_letters_and_without_gaps(disc):
    evaluation = read_disc(disc)
    assert evaluation.speech.name == "rt03"
    assert [(u.id, u.text, u.start, u.end) for u in evaluation.speech.utterances] == [
        ("fsh_60262-A_000120-000234", "right", 1.1, 2.445),
        ("sw_31415-B_000050-000150", "yes", 0.4, 1.6),
    ]
    assert evaluation.stm == JOINED
    assert evaluation.glm == disc / "data" / "trans_rules" / "en20030506.glm"


def test_the_disc_may_be_in_a_directory(disc):
    assert read_disc(disc.parent).stm == JOINED


RT03_EDITS = {
    "third": ("fsh*.stm", "fsh_60262 2", "fsh_60262 3", ":6: expected channel 1 or 2"),
    "no_recording": ("sw*.stm", "sw_31415 2", "sw_2 2", ":3: no recording sw_2.sph"),
    "only_gaps": ("sw*.stm", "sw_31415_B", "inter_segment_gap", ": has comments only"),
}


@pytest.mark.parametrize("kind", RT03_EDITS)
def test_bad_lines_of_rt03(disc, kind):
    refuses(read_disc, disc, *RT03_EDITS[kind])


TAKEN = {
    "letters": ("fsh*.stm", "fsh_60262 2", "fsh_60262 b", None),
    "past_the_end": ("sw*.stm", "1.500", "4.500", ":3: ends at 4.5 s, but sw_31415 "),
    "overlap": (
        "sw*.stm",
        "sw_31415 2 sw_31415_B 0.500 1.500",
        "fsh_60262 2 fsh_60262_B 0.500 1.900",
        "fsh_60262.stm:6: starts at 1.0 s, but the segment at ",
    ),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_odd_in_rt03_is_told(disc, kind):
    pattern, old, new, message = TAKEN[kind]
    edit(disc, pattern, old, new)
    told = []
    assert len(read_rt03(disc, told.append).speech.utterances) == 2
    assert len(told) == bool(message)
    assert not message or message in told[0]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("audio/eval03/english/cts", "cts: no such directory"),
        ("references/eval03/english/cts", "cts: no such directory"),
        ("trans_rules/en20030506.glm", "en20030506.glm: no such file"),
        (".", "expected the disc LDC2007S10"),
    ],
)
def test_missing_parts(disc, pattern, message):
    (disc / "data" / pattern).rename(disc / "elsewhere")
    with pytest.raises(InputError, match=message):
        read_disc(disc)


def test_no_references(disc):
    for path in disc.rglob("*.stm"):
        path.unlink()
    with pytest.raises(InputError, match=r"no references \(\*.stm\)"):
        read_disc(disc)
