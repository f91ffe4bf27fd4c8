from pathlib import Path

import numpy as np
import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.ldc.evaluation import Evaluation, read_eval2000
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


EDITS = {
    "stm_line": ("*.stm", "1.00 2.00 <O,S", "3.00 2.00 <O,S", r"stm:3: expected 0 <="),
    "stm_mark": ("*.stm", "WE'RE }", "WE'RE", r"stm:7: '{' without '}'"),
}


@pytest.mark.parametrize("kind", EDITS)
def test_files_that_disagree_or_are_bad(discs, kind):
    pattern, old, new, message = EDITS[kind]
    edit(discs, pattern, old, new)
    with pytest.raises(InputError, match=message):
        read(discs)


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
    ("old", "new", "message"),
    [
        ("en_4156 A", "en_4156 1", r"stm:7: expected channel A or B, got 1"),
        ("en_4156", "en_4157", r"stm:7: no recording en_4157.sph"),
    ],
)
def test_references_that_do_not_fit_the_recordings(discs, old, new, message):
    edit(discs, "*.stm", old, new)
    with pytest.raises(InputError, match=message):
        read(discs)


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


def test_copies_of_a_recording(discs):
    copy = discs / "speech" / "copy"
    copy.mkdir()
    (copy / "sw_4390.sph").write_bytes(b"")
    with pytest.raises(InputError, match="a copy of it is at"):
        read(discs)
