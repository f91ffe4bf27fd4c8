from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.ldc.evaluation import Evaluation, read_rt03
from espnet_distopt.recipes.corpora.mini_swbd.corpus import glm_text

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


def read(disc: Path) -> Evaluation:
    return read_rt03(disc, lambda line: None)


def test_files_are_joined_with_channels_as_letters_and_without_gaps(disc):
    evaluation = read(disc)
    assert evaluation.speech.name == "rt03"
    assert [(u.id, u.text, u.start, u.end) for u in evaluation.speech.utterances] == [
        ("fsh_60262-A_000120-000234", "right", 1.1, 2.445),
        ("sw_31415-B_000050-000150", "yes", 0.4, 1.6),
    ]
    assert evaluation.stm == JOINED
    assert evaluation.glm == disc / "data" / "trans_rules" / "en20030506.glm"


def test_the_disc_may_be_in_a_directory(disc):
    assert read(disc.parent).stm == JOINED


EDITS = {
    "letter": ("fsh*.stm", "fsh_60262 2", "fsh_60262 C", ":6: expected channel 1 or 2"),
    "third": ("fsh*.stm", "fsh_60262 2", "fsh_60262 3", ":6: expected channel 1 or 2"),
    "backwards": ("sw*.stm", "0.500", "2.500", ":3: expected 0 <= start < end"),
    "fields": ("sw*.stm", "_B 0.500 1.500 <O> Yes", "", ":3: expected 'file chan"),
    "bracket": ("sw*.stm", "Yes", "Yes)", r":3: brackets \( \) that don't pair"),
    "no_recording": ("sw*.stm", "sw_31415 2", "sw_2 2", ":3: no recording sw_2.sph"),
    "only_gaps": ("sw*.stm", "sw_31415_B", "inter_segment_gap", ": has comments only"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_bad_lines(disc, kind):
    pattern, old, new, message = EDITS[kind]
    path = next(disc.rglob(pattern))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        read(disc)


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
def test_what_is_odd_is_told(disc, kind):
    pattern, old, new, message = TAKEN[kind]
    path = next(disc.rglob(pattern))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
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
        read(disc)


def test_no_references(disc):
    for path in disc.rglob("*.stm"):
        path.unlink()
    with pytest.raises(InputError, match=r"no references \(\*.stm\)"):
        read(disc)
