"""The synthetic corpus, from the discs to data directories and to hub5 scoring."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet_distopt.recipes.commands.preparing import (
    make_mini_swbd_command,
    make_mini_swbd_parser,
    prepare_swbd_command,
)
from espnet_distopt.recipes.corpora.audio.sphere import read_header
from espnet_distopt.recipes.corpora.hub5.stm import read_stm, reference_words
from espnet_distopt.recipes.corpora.ldc.discs import find_files
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    find_acronyms,
    read_dictionary,
    read_transcript,
)
from espnet_distopt.recipes.corpora.ldc.swbd import read_conv_tab
from espnet_distopt.recipes.corpora.mini_swbd.conversation import (
    good_line,
    record,
    speak,
)
from espnet_distopt.recipes.corpora.mini_swbd.corpus import (
    SWBD,
    TRAIN,
    Sizes,
    make_corpus,
    plan_corpus,
    reference_text,
)
from espnet_distopt.recipes.corpora.mini_swbd.dialogue import ACRONYMS, SHARED, TOPICS
from tests.recipes.contents import contents

TINY = Sizes(
    conversations=2, test_conversations=1, turns=8, speakers=3, test_speakers=2
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    out = tmp_path_factory.mktemp("mini") / "corpus"
    make_corpus(out, TINY, seed=0, nj=1)
    return out


def test_discs_look_like_the_ldcs(corpus):
    transcripts = "swb1/transcriptions/swb_ms98_transcriptions"
    reference = "2000_hub5_eng_eval_tr/reference"
    assert sorted(contents(corpus)) == [
        f"{reference}/en20000405_hub5.glm",
        f"{reference}/hub5e00.english.000405.stm",
        "hub5e_00/english/en_4156.sph",
        "hub5e_00/english/sw_4390.sph",
        "mini_swbd.txt",
        "swb1/swb1_d1/data/sw02001.sph",
        "swb1/swb1_d3/data/sw02002.sph",
        "swb1/tables/conv.tab",
        *(
            f"{transcripts}/20/{number}/sw{number}{side}-ms98-a-trans.text"
            for number in (2001, 2002)
            for side in "AB"
        ),
        f"{transcripts}/sw-ms98-dict.text",
    ]
    path = corpus / "swb1/swb1_d1/data/sw02001.sph"
    header = read_header(path)
    assert (header.coding, header.channels, header.sample_rate) == ("ulaw", 2, 8000)
    assert b"conversation_id -s4 2001\n" in path.read_bytes()[:1024]


def test_samples_survive_the_disc(corpus):
    """Libsndfile reads what the telephone line gave, so mu-law is coded once."""
    plan = plan_corpus(TINY, seed=0)[0]
    said = record(plan.people, plan.turns, good_line, plan.seed)
    path = corpus / "swb1/swb1_d1/data/sw02001.sph"
    samples, _ = soundfile.read(path, dtype="float32", always_2d=True)
    assert np.array_equal(samples, said.samples)


def test_dictionary_tells_acronyms_from_words(corpus):
    dictionary = next(corpus.rglob("sw-ms98-dict.text"))
    acronyms = find_acronyms(read_dictionary(dictionary))
    assert {word: acronyms.get(word) for word in ACRONYMS} == ACRONYMS
    assert "NASA" not in acronyms


def test_conv_tab_names_the_speakers(corpus):
    plans = [plan for plan in plan_corpus(TINY, seed=0) if plan.part == TRAIN]
    assert read_conv_tab(corpus / "swb1/tables/conv.tab") == {
        f"{plan.name}-{side}": str(person.pin)
        for plan in plans
        for side, person in zip("AB", plan.people, strict=True)
    }


@pytest.mark.parametrize(
    ("ms98", "reference"),
    [
        ("uh i work for IBM", "(%HESITATION) i work for i. b. m."),
        ("tell us of the US", "tell us of the u. s."),
        ("th[at]- NASA [noise] rocket", "(th-) nasa rocket"),
        ("[laughter-oh] my [laughter]", "oh my"),
        ("[noise]", "IGNORE_TIME_SEGMENT_IN_SCORING"),
    ],
)
def test_reference_text(ms98, reference):
    assert reference_text(ms98) == reference


def test_acronyms_are_spoken_as_letters():
    spoken = []

    class Recorder:
        sample_rate = 8000

        def say(self, text, voice):
            spoken.append(text)
            return np.zeros(8, np.float32)

    speak("tell us IBM made TVs [noise] TV", None, Recorder(), np.random.default_rng(0))
    assert spoken == ["tell us i b m made tvs", "t v"]


def test_grammar_has_every_acronym_in_it():
    words = " ".join(
        alternative
        for grammar in (SHARED, *TOPICS.values())
        for alternatives in grammar.values()
        for alternative in alternatives
    ).split()
    assert {*ACRONYMS, "NASA"} <= set(words)


def test_transcripts_cover_the_recording_without_gap(corpus):
    seconds = read_header(corpus / "swb1/swb1_d1/data/sw02001.sph").seconds
    for path in find_files(corpus, r"sw2001.-ms98-a-trans.text"):
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
        part: {id(p) for plan in plans if plan.part == part for p in plan.people}
        for part in (TRAIN, SWBD)
    }
    assert people[SWBD] <= people[TRAIN]
    assert all(plan.people[0] is not plan.people[1] for plan in plans)
    assert len({plan.name for plan in plans}) == len(plans) == conversations + 12


def test_switchboard_half_is_left_known_when_train_dev_is_taken():
    plans = plan_corpus(Sizes(), seed=0)
    train = [plan for plan in plans if plan.part == TRAIN]
    # What split_dev takes: whole conversations, until it has a tenth of the utterances.
    dev = {person for plan in train[: len(train) // 10 + 1] for person in plan.people}
    tested = {p for plan in plans if plan.part == SWBD for p in plan.people}
    sides = [person for plan in train for person in plan.people if person not in dev]
    assert tested <= set(sides)
    assert 0.7 < len(sides) / (2 * len(train)) < 0.85
    assert [plan.disc for plan in train] == sorted(plan.disc for plan in train)
    assert {plan.disc for plan in train} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--conversations", "9999"], "at most 2389 conversations"),
        (["--turns", "3"], "--turns is 3, expected at least 4"),
        (["--speakers", "1"], "--speakers is 1, expected at least 2"),
    ],
)
def test_impossible_sizes(options, message, tmp_path, refused):
    options = ["--out", str(tmp_path / "corpus"), *options]
    assert refused(make_mini_swbd_command, options).startswith(message)
    assert not list(tmp_path.iterdir())


def test_defaults_of_the_command_are_those_of_the_library():
    args = make_mini_swbd_parser().parse_args(["--out", "x"])
    assert Sizes(**{name: getattr(args, name) for name in vars(Sizes())}) == Sizes()


def test_from_discs_to_data_directories(corpus, tmp_path, capsys):
    command = ["--swb1", str(corpus / "swb1")]
    command += ["--conv_tab", str(corpus / "swb1/tables/conv.tab")]
    command += ["--eval2000_speech", str(corpus / "hub5e_00")]
    command += ["--eval2000_text", str(corpus / "2000_hub5_eng_eval_tr")]
    command += ["--out", str(tmp_path / "data")]
    for _ in range(2):
        prepare_swbd_command(command)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "eval2000",
        "train_dev",
        "train_nodup",
    ]
    summary = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in summary[-4:-1]] == [
        ["train_nodup", "1"],
        ["train_dev", "1"],
        ["eval2000", "2"],
    ]
    utterances = (tmp_path / "data" / "eval2000" / "utt2spk").read_text().split("\n")
    assert utterances[0].startswith("en_4156-")
    stm = (tmp_path / "data" / "eval2000" / "stm").read_text()
    assert stm == (next(corpus.rglob("*.stm"))).read_text()
    assert (tmp_path / "data" / "eval2000" / "glm").exists()


def test_hub5_scoring_accepts_stm_and_glm(corpus, tmp_path):
    """Without hesitations and partial words, and with `I AM` for `i'm`: no error."""
    if shutil.which("sctk") is None:
        assert os.environ.get("CI") != "true", "sctk is missing: apt-get install sctk"
        pytest.skip("sctk is missing")
    stm = next(corpus.rglob("*.stm"))
    shutil.copy(stm, tmp_path / "ref.stm")
    shutil.copy(next(corpus.rglob("*.glm")), tmp_path / "glm")
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
