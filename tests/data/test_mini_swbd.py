"""The synthetic corpus, from the discs to data directories and to hub5 scoring."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile

from espnet_distopt.bin import make_mini_swbd, prepare_swbd
from espnet_distopt.data.discs import find_files
from espnet_distopt.data.hub5 import read_stm, reference_words
from espnet_distopt.data.mini_plan import SWBD, TRAIN, Sizes, plan_corpus
from espnet_distopt.data.mini_swbd import make_corpus
from espnet_distopt.data.ms98 import read_transcript
from espnet_distopt.errors import InputError

TINY = Sizes(
    conversations=2, test_conversations=1, turns=8, speakers=3, test_speakers=2
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("mini") / "corpus"
    make_corpus(out, TINY, seed=0, nj=1)
    return out


def contents(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in find_files(root, ".*")
    }


def test_discs_look_like_the_ldcs(corpus):
    assert sorted(contents(corpus)) == [
        "hub5e_00/english/en_4156.sph",
        "hub5e_00/english/hub5e_00.pem",
        "hub5e_00/english/sw_4390.sph",
        "mini_swbd.txt",
        "reference/en20000405_hub5.glm",
        "reference/hub5e00.english.000405.stm",
        "swb1/swb1_d1/data/sw02001.sph",
        "swb1/swb1_d1/data/sw02002.sph",
        *(
            f"swb1/transcriptions/swb_ms98_transcriptions/20/{n}/sw{n}{s}-ms98-a-trans.text"
            for n in (2001, 2002)
            for s in "AB"
        ),
    ]
    header = soundfile.info(corpus / "swb1/swb1_d1/data/sw02001.sph")
    assert (header.format, header.subtype) == ("NIST", "ULAW")
    assert (header.channels, header.samplerate) == (2, 8000)


def test_transcripts_cover_the_recording_without_gap(corpus):
    seconds = soundfile.info(corpus / "swb1/swb1_d1/data/sw02001.sph").duration
    for path in find_files(corpus, "sw2001.-ms98-a-trans.text"):
        segments = read_transcript(path)
        starts = [segment.start for segment in segments]
        assert starts == [0.0] + [segment.end for segment in segments[:-1]]
        assert segments[-1].end == pytest.approx(seconds, abs=1e-6)


def test_result_depends_on_the_seed_and_not_on_the_processes(corpus, tmp_path):
    make_corpus(tmp_path / "two", TINY, seed=0, nj=2)
    assert contents(tmp_path / "two") == contents(corpus)
    make_corpus(tmp_path / "two", TINY, seed=1, nj=1)
    other = contents(tmp_path / "two")
    assert sorted(other) == sorted(contents(corpus))
    recordings = [name for name in other if name.endswith(".sph")]
    assert all(other[name] != contents(corpus)[name] for name in recordings)


@pytest.mark.parametrize(("conversations", "speakers"), [(1, 40), (7, 9), (60, 40)])
def test_switchboard_half_knows_its_speakers_and_nobody_calls_himself(
    conversations, speakers
):
    sizes = Sizes(conversations=conversations, speakers=speakers)
    plans = plan_corpus(sizes, seed=0)
    people = {
        part: {id(s) for plan in plans if plan.part == part for s in plan.speakers}
        for part in (TRAIN, SWBD)
    }
    assert people[SWBD] <= people[TRAIN]
    assert all(plan.speakers[0] is not plan.speakers[1] for plan in plans)
    assert len({plan.name for plan in plans}) == len(plans) == conversations + 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--conversations", "0"], "--conversations is 0, expected at least 1"),
        (["--conversations", "9999"], "at most 2389 conversations"),
        (["--turns", "3"], "--turns is 3, expected at least 4"),
        (["--speakers", "1"], "--speakers is 1, expected at least 2"),
        (["--nj", "0"], "--nj is 0, expected at least 1"),
    ],
)
def test_impossible_sizes(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        make_mini_swbd.main(["--out", str(tmp_path / "corpus"), *options])
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert not list(tmp_path.iterdir())


def test_somebody_elses_directory_stays(tmp_path):
    (tmp_path / "thesis").touch()
    with pytest.raises(InputError, match="not empty"):
        make_corpus(tmp_path, TINY, seed=0, nj=1)


def test_defaults_of_the_command_are_those_of_the_library():
    args = make_mini_swbd.get_parser().parse_args(["--out", "x"])
    assert Sizes(**{name: getattr(args, name) for name in vars(Sizes())}) == Sizes()


def test_from_discs_to_data_directories(corpus, tmp_path, capsys):
    command = ["--swb1", str(corpus / "swb1")]
    command += ["--eval2000_speech", str(corpus / "hub5e_00")]
    command += ["--eval2000_text", str(corpus), "--out", str(tmp_path / "data")]
    for _ in range(2):
        prepare_swbd.main(command)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "eval2000",
        "train_dev",
        "train_nodup",
    ]
    summary = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in summary[-3:]] == [
        ["train_nodup", "1"],
        ["train_dev", "1"],
        ["eval2000", "2"],
    ]
    utterances = (tmp_path / "data" / "eval2000" / "utt2spk").read_text().split("\n")
    assert utterances[0].startswith("en_4156-")
    stm = (tmp_path / "data" / "eval2000" / "stm").read_text()
    assert stm == (corpus / "reference/hub5e00.english.000405.stm").read_text()
    assert (tmp_path / "data" / "eval2000" / "glm").exists()


def test_hub5_scoring_accepts_stm_and_glm(corpus, tmp_path):
    """Without hesitations and partial words, and with `I AM` for `i'm`: no error."""
    if shutil.which("sctk") is None:
        assert os.environ.get("CI") != "true", "sctk is missing: apt-get install sctk"
        pytest.skip("sctk is missing")
    stm = corpus / "reference" / "hub5e00.english.000405.stm"
    shutil.copy(stm, tmp_path / "ref.stm")
    shutil.copy(corpus / "reference" / "en20000405_hub5.glm", tmp_path / "glm")
    (tmp_path / "hyp.ctm").write_text("".join(perfect_ctm(stm)))
    tools = subprocess.check_output(["sctk", "path"], text=True).strip()
    hubscr = f"sctk hubscr -p {tools} -l english -h hub5 -g glm -r ref.stm hyp.ctm"
    subprocess.run(hubscr.split(), cwd=tmp_path, check=True, capture_output=True)
    report = (tmp_path / "hyp.ctm.filt.sys").read_text()
    total = next(line for line in report.splitlines() if "Sum/Avg" in line).split("|")
    correct, *errors = map(float, total[3].split())
    assert (correct, errors[:4]) == (100.0, [0.0] * 4)


def perfect_ctm(stm: Path):
    for reference in sorted(
        read_stm(stm), key=lambda r: (r.span.file, r.span.channel, r.span.start)
    ):
        span = reference.span
        words = " ".join(w for w in reference_words(reference.text) if w[-1] != "-")
        words = words.replace("i'm", "I AM").split()
        step = (span.end - span.start) / max(len(words), 1)
        for number, word in enumerate(words):
            start = span.start + number * step
            yield f"{span.file} {span.channel} {start:.3f} {step:.3f} {word}\n"
