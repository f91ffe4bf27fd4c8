import numpy as np
import pytest
import soundfile

from espnet_distopt.data.eval2000 import read_eval2000
from espnet_distopt.errors import InputError

PEM = """\
;; comment
sw_4390 A sw_4390_A 1.00 2.00
sw_4390 A sw_4390_A 2.10 3.00
sw_4390 A sw_4390_A 4.00 4.50
sw_4390 B sw_4390_B 0.05 4.99
"""
STM = """\
;; comment
sw_4390 A sw_4390_A 1.00 2.00 <O,SWB> oh (%HESITATION) (th-) yeah
sw_4390 A sw_4390_A 2.10 3.00 <O,SWB> (%HESITATION)
sw_4390 A sw_4390_A 4.00 4.50 <O,SWB> IGNORE_TIME_SEGMENT_IN_SCORING
sw_4390 B sw_4390_B 0.05 4.99 <O,SWB> Right
"""


@pytest.fixture
def discs(tmp_path):
    speech = tmp_path / "speech" / "hub5e_00" / "english"
    text = tmp_path / "text" / "2000_hub5_eng_eval_tr" / "reference"
    speech.mkdir(parents=True)
    text.mkdir(parents=True)
    silence = np.zeros((40000, 2))
    soundfile.write(
        speech / "sw_4390.sph", silence, 8000, format="NIST", subtype="ULAW"
    )
    (speech / "hub5e_00.pem").write_text(PEM)
    (text / "hub5e00.english.000405.stm").write_text(STM)
    (text / "en20000405_hub5.glm").write_text(";; rules\n")
    return tmp_path


def read(discs):
    return read_eval2000(discs / "speech", discs / "text")


def test_utterances_without_words_are_left_to_the_stm(discs):
    evaluation = read(discs)
    assert [(u.id, u.text) for u in evaluation.speech.utterances] == [
        ("sw_4390-A_000100-000200", "oh th- yeah"),
        ("sw_4390-B_000005-000499", "right"),
    ]
    assert evaluation.stm.read_text() == STM


def test_audio_is_padded_up_to_half_the_gap_and_the_ends(discs):
    first, last = read(discs).speech.utterances
    assert (first.start, first.end) == (0.9, 2.05)
    assert (last.start, last.end) == (0.0, 5.0)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("*.pem", "4.00 4.50", "4.00 4.60", r"stm: lacks 1 of .*A_000400-000460"),
        ("*.stm", "4.00 4.50 <O,SWB>", "4.00 4.60 <O,SWB>", r"stm: lacks 1 of"),
        ("*.pem", "sw_4390 A sw_4390_A 1.00 2.00\n", "", r"pem: lacks 1 of"),
        ("*.pem", "sw_4390_A 1.00 2.00", "sw_4390_A 1.00", r"pem:2: expected 'file"),
        ("*.stm", "1.00 2.00 <O", "3.00 2.00 <O", r"stm:2: expected 0 <= start"),
    ],
)
def test_files_that_disagree_or_are_bad(discs, file, old, new, message):
    path = next(discs.rglob(file))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(InputError, match=message):
        read(discs)


@pytest.mark.parametrize("both", [("4.99", "6.00"), ("sw_4390", "en_4156")])
def test_pem_that_does_not_fit_the_recordings(discs, both):
    for pattern in ("*.pem", "*.stm"):
        path = next(discs.rglob(pattern))
        path.write_text(path.read_text().replace(*both))
    with pytest.raises(InputError, match=r"has only 5.00 s|no recording en_4156.sph"):
        read(discs)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("*.pem", "no segmentation"),
        ("*.stm", "no reference"),
        ("*.glm", "no mapping rules"),
        ("*.sph", "no recording sw_4390.sph"),
    ],
)
def test_missing_files(discs, file, message):
    next(discs.rglob(file)).unlink()
    with pytest.raises(InputError, match=message):
        read(discs)
