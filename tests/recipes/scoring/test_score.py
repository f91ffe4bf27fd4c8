"""The scoring command: its files, its halves, and what it says of bad input."""

import json
from pathlib import Path

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.commands.scoring import score_command as main
from espnet_distopt.recipes.scoring.result import Result
from espnet_distopt.recipes.scoring.scorers import (
    Sclite,
    find_sclite,
    parse_raw_summary,
)
from tests.refusal import Refused

REF = "en_1-A a b\nsw_1-A one two\nsw_2-B three\n"
HYP = "sw_1-A one\nsw_2-B\nen_1-A a b c\n"  # another order, one empty, one longer


def score(directory: Path, ref: str, hyp: str, *options: str) -> Path:
    (directory / "ref").write_text(ref)
    (directory / "hyp").write_text(hyp)
    out = directory / "score_wer"
    files = ["--ref", str(directory / "ref"), "--hyp", str(directory / "hyp")]
    main([*files, "--out", str(out), "--scorer", "jiwer", *options])
    return out


def test_files(tmp_path: Path) -> None:
    (tmp_path / "utt2spk").write_text("en_1-A en\nsw_1-A sw\nsw_2-B sw\n")
    halves = ["--half", "swbd=^sw_", "--half", "callhome=^en_"]
    speakers = ["--utt2spk", str(tmp_path / "utt2spk")]
    out = score(tmp_path, REF, HYP, *halves, *speakers)
    assert (out / "ref.trn").read_text() == (
        "a b (en-en_1-A)\none two (sw-sw_1-A)\nthree (sw-sw_2-B)\n"
    )
    assert (out / "hyp.trn").read_text() == (
        "a b c (en-en_1-A)\none (sw-sw_1-A)\n (sw-sw_2-B)\n"
    )
    scorer, *table = (out / "result.txt").read_text().splitlines()
    assert scorer.startswith("scorer: jiwer ")
    assert [line.split() for line in table] == [
        ["Snt", "Wrd", "Corr", "Sub", "Del", "Ins", "Err", "S.Err"],
        ["swbd", "2", "3", "33.3", "0.0", "66.7", "0.0", "66.7", "100.0"],
        ["callhome", "1", "2", "100.0", "0.0", "0.0", "50.0", "50.0", "100.0"],
        ["all", "3", "5", "60.0", "0.0", "40.0", "20.0", "60.0", "100.0"],
    ]
    result = Result.read(out / "result.json")
    assert list(result.halves) == ["swbd", "callhome", "all"]
    assert result.to_json() == (out / "result.json").read_text()
    values = json.loads((out / "result.json").read_text())["halves"]["swbd"]
    assert values["deletions"] == 2
    assert values["error_rate"] == 66.67


@pytest.mark.parametrize(
    ("ref", "hyp", "options", "message"),
    [
        (REF, "en_1-A a\n", (), "2 of 3 utterances of"),
        (REF, HYP + "x y\n", (), "1 hypotheses have no reference in"),
        (REF, HYP + "sw_2-B x\n", (), "hyp:4: utterance sw_2-B comes twice"),
        ("", HYP, (), "ref: empty"),
        ("a\n", "a b\n", (), "no reference word in 'all': nothing to score"),
        (REF, HYP, ("--half", "x=^q"), "half x: no id matches '^q'"),
        (REF, HYP, ("--half", "x=("), "half x: '(' is no regular expression"),
        (REF, HYP, ("--half", "x"), "--half x: expected NAME=REGEX"),
        (REF, HYP, ("--half", "all=x"), "--half all=x: expected NAME=REGEX"),
        (REF, HYP, ("--utt2spk", "/none"), "/none: no such file"),
        (REF, HYP, ("--scorer", "sclite", "--sctk", "/bin/true"), "not NIST's sclite"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    refused: Refused,
    ref: str,
    hyp: str,
    options: tuple[str, ...],
    message: str,
) -> None:
    out = score(tmp_path, "u a\n", "u a\n")
    assert (out / "result.json").exists()
    assert message in refused(score, tmp_path, ref, hyp, *options)
    assert not list(out.iterdir())


def test_an_out_that_is_a_file(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "score_wer").touch()
    said = refused(score, tmp_path, REF, HYP)
    assert "score_wer: cannot be written: Not a directory" in said


def test_bad_encoding_and_bad_speakers(tmp_path: Path, refused: Refused) -> None:
    utt2spk = tmp_path / "utt2spk"
    for content, message in ((b"a b c\n", "utt2spk:1: expected"), (b"\xff", "UTF-8")):
        utt2spk.write_bytes(content)
        assert message in refused(score, tmp_path, REF, HYP, "--utt2spk", str(utt2spk))


def fake(directory: Path, name: str, body: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_program_that_only_shares_the_name_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_sclite() is None
    fake(tmp_path, "sctk", "echo single cell toolkit")
    assert find_sclite() is None
    fake(tmp_path, "sctk", 'echo "sclite Version: 2.10, SCTK Version: 1.3"')
    found = find_sclite()
    assert found == Sclite(("sctk", "sclite"), "2.10")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo it broke; exit 3", "failed with exit code 3: it broke"),
        ("echo nothing", "has no 'Sum' line"),
        ("echo '| Sum | 1 3 | 3 0 0 0 0 0 |'", "counted 1 sentences and 3 words"),
    ],
)
def test_sclite_that_goes_wrong(tmp_path: Path, body: str, message: str) -> None:
    sclite = Sclite((fake(tmp_path, "sclite", body),), "2.10")
    with pytest.raises(InputError, match=message):
        sclite.count({"u": ["a", "b"]}, {"u": ["a"]})


def test_parse_raw_summary() -> None:
    counts = parse_raw_summary(
        "| Sum  |  108   1682 | 958  506  218  163  887   63 |\n| Mean | 9.8 1.0 |"
    )
    assert (counts.sentences, counts.words, counts.correct) == (108, 1682, 958)
    assert counts.errors == 887
    assert counts.sentence_errors == 63
    assert round(counts.error_rate, 1) == 52.7
    # Words with confidences have a third cell.
    row = "| Sum  |  108   1682 | 958  506  218  163  887   63 | -0.089 |"
    assert parse_raw_summary(row) == counts


def test_damaged_result(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    for content in ("", "[]", "{}", '{"scorer": "x", "halves": {"all": {"words": 1}}}'):
        path.write_text(content)
        with pytest.raises(InputError, match="score again"):
            Result.read(path)
