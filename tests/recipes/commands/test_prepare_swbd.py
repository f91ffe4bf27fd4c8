"""From tiny discs to data directories; and discs that are not as they should be."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from espnet_distopt.recipes.commands import preparing
from espnet_distopt.recipes.corpora.kaldi.directory import DataDir
from tests.recipes.commands.swbd_discs import FE, FSH, write_discs
from tests.recipes.contents import contents
from tests.refusal import Refused

TRANSCRIPT = "ms98/20/2002/sw2002A-ms98-a-trans.text"
AUDIO = "swb1/swb1_d2/data/sw02002.sph"
STM = "hub5e_text/reference/hub5e00.english.000405.stm"
GLM = "hub5e_text/reference/en20000405_hub5.glm"
FISHER_AUDIO = f"fisher/sph/fe_03_p1_sph1/000/{FE}.sph"
FISHER_TEXT = f"fisher/text/data/trans/000/{FE}.txt"
RT03_STM = f"rt03/data/references/eval03/english/cts/{FSH}.stm"

Damage = Callable[[Path], object]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("discs")
    write_discs(root)
    return root


@pytest.fixture
def discs(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "discs"))


def options(discs: Path, *, optional: bool = True) -> list[str]:
    required = {
        "swb1": "swb1",
        "swb1_text": "ms98",
        "eval2000_speech": "hub5e_00",
        "eval2000_text": "hub5e_text",
    }
    others = {
        "conv_tab": "conv.tab",
        "fisher_speech": "fisher/sph",
        "fisher_text": "fisher/text",
        "rt03": "rt03",
    }
    places = required | others if optional else required
    return [
        *(
            part
            for name, place in places.items()
            for part in (f"--{name}", str(discs / place))
        ),
        *("--out", str(discs.parent / "data")),
    ]


def read(path: Path) -> DataDir:
    return DataDir.read(path)


def test_required_discs_alone(discs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preparing.prepare_swbd_command(options(discs, optional=False))
    data = discs.parent / "data"
    names = ["eval2000", "train_dev", "train_nodup"]
    assert sorted(path.name for path in data.iterdir()) == names
    dev, train = read(data / "train_dev"), read(data / "train_nodup")
    side = "sw02001-A"
    assert dev.text == {
        f"{x}_{times}": text
        for x in (side, "sw02001-B")
        for times, text in (
            ("000050-000200", "hello this is i b m"),
            ("000250-000400", "uh-huh"),
            ("000650-000800", "th- that's right"),
        )
    }
    assert str((dev.segments or {})[f"{side}_000050-000200"]) == (
        "sw02001-A 0.500000 2.000000"
    )
    assert str((dev.channels or {})["sw02001-B"]) == "sw02001 B"
    assert dev.wav[side] == str(discs / "swb1/swb1_d1/data/sw02001.sph")
    # Without conv.tab nobody knows that the speakers of 2001 talk in 2004, too.
    assert set(train.utt2spk.values()) == {
        f"sw0200{n}-{s}" for n in "234" for s in "AB"
    }
    evaluation = read(data / "eval2000")
    assert set(evaluation.text.values()) == {"hello i b m", ""}
    assert (data / "eval2000" / "stm").read_text() == (discs / STM).read_text()
    assert (data / "eval2000" / "glm").read_bytes() == (discs / GLM).read_bytes()
    out = capsys.readouterr().out
    assert f"reading {discs / 'swb1'}\n" in out
    assert "train_nodup 286 h" in out
    assert re.search(r"train_nodup +3 +18 ", out)


def test_everything(discs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preparing.prepare_swbd_command([*options(discs), "--dev_speakers", "exclude"])
    data = discs.parent / "data"
    assert sorted(path.name for path in data.iterdir()) == [
        *("eval2000", "rt03", "train_all", "train_dev", "train_fisher", "train_nodup")
    ]
    train = read(data / "train_nodup")
    # 1000 and 1001, the speakers of 2001, are not heard again: 2004-B is someone else.
    assert set(train.utt2spk.values()) == {
        *("sw02002-A", "sw02002-B", "sw02003-A", "sw02003-B", "sw02004-B")
    }
    fisher = read(data / "train_fisher")
    assert fisher.text == {
        f"{FE}-A-000100-000200": "hello",
        f"{FE}-B-000600-000700": "i work at i b m",
    }
    assert read(data / "train_all").text == {**fisher.text, **train.text}
    rt03 = read(data / "rt03")
    assert list(rt03.text.values()) == ["hello again", "hello"]
    assert "inter_segment_gap" not in (data / "rt03" / "stm").read_text()
    assert (data / "rt03" / "glm").exists()
    out = capsys.readouterr().out
    assert "train_dev has 2 speakers; their other 1 conversation sides" in out


def test_again_changes_no_byte(discs: Path) -> None:
    preparing.prepare_swbd_command(options(discs))
    first = contents(discs.parent / "data")
    preparing.prepare_swbd_command(options(discs))
    assert contents(discs.parent / "data") == first


def test_sets_of_an_earlier_run_go_unless_others_made_them(
    discs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preparing.prepare_swbd_command(options(discs))
    data = discs.parent / "data"
    shutil.copytree(data / "train_nodup", data / "train_mine")
    (data / "rt03" / "prepared_by").unlink()
    other_disk = discs.parent / "train_all"
    (data / "train_all").rename(other_disk)
    (data / "train_all").symlink_to(other_disk)
    capsys.readouterr()
    preparing.prepare_swbd_command(options(discs, optional=False))
    names = ["eval2000", "rt03", "train_dev", "train_mine", "train_nodup"]
    assert sorted(path.name for path in data.iterdir()) == names
    assert not other_disk.exists()
    out = capsys.readouterr().out
    for name in ("train_fisher", "train_all"):
        assert f"removed {data}/{name}, which is of an earlier run\n" in out
    assert f"{data}/rt03 is not of this run; it stays, because others may" in out


def test_duplicates_are_capped_in_each_training_set(discs: Path) -> None:
    preparing.prepare_swbd_command([*options(discs), "--max_duplicates", "2"])
    texts = list(read(discs.parent / "data" / "train_all").text.values())
    assert {texts.count(text) for text in texts} == {1, 2}


def test_all_training_speech_has_all_of_switchboards(discs: Path) -> None:
    """Fisher's copies of a text do not displace those of Switchboard."""
    replace(FISHER_TEXT, "A: hello", "A: uh-huh")(discs)
    preparing.prepare_swbd_command([*options(discs), "--max_duplicates", "2"])
    data = discs.parent / "data"
    train, together = read(data / "train_nodup").text, read(data / "train_all").text
    assert list(train.values()).count("uh-huh") == 2
    fisher = f"{FE}-B-000600-000700"
    assert together == {fisher: "i work at i b m", **train}


def remove(name: str) -> Damage:
    return lambda discs: (discs / name).unlink()


def truncate(name: str, size: int) -> Damage:
    return lambda discs: (discs / name).write_bytes((discs / name).read_bytes()[:size])


def replace(name: str, old: str | bytes, new: str | bytes) -> Damage:
    def damage(discs: Path) -> None:
        before = (discs / name).read_bytes()
        after = before.replace(as_bytes(old), as_bytes(new), 1)
        assert after != before
        (discs / name).write_bytes(after)

    return damage


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def copy(name: str, other: str) -> Damage:
    def damage(discs: Path) -> None:
        (discs / other).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(discs / name, discs / other)

    return damage


BAD_DISCS = {
    "truncated samples": (truncate(AUDIO, 5000), "sw02002.sph"),
    "past the end": (
        replace(TRANSCRIPT, "6.500000 8.000000", "6.500000 80.000000"),
        f"{TRANSCRIPT}:4: ends at 80.0 s, but sw02002 has only 10.00 s",
    ),
    "no conv.tab": (remove("conv.tab"), "conv.tab: no such file"),
    "conversation of the STM missing": (
        remove("hub5e_00/english/sw_4390.sph"),
        f"{STM}:11: no recording sw_4390.sph",
    ),
    "no GLM": (remove(GLM), "hub5e_text: no mapping rules"),
    "no Fisher recordings": (
        remove(FISHER_AUDIO),
        "fisher/sph: no recordings (fe_03_NNNNN.sph) below it",
    ),
    "no RT-03 rules": (
        lambda d: shutil.rmtree(d / "rt03/data/trans_rules"),
        "en20030506.glm: no such file",
    ),
    "RT-03 channel 3": (
        replace(RT03_STM, f"{FSH} 2", f"{FSH} 3"),
        f"{RT03_STM}:5: expected channel 1 or 2",
    ),
}


@pytest.mark.parametrize("kind", BAD_DISCS)
def test_bad_discs(kind: str, discs: Path, refused: Refused) -> None:
    damage, message = BAD_DISCS[kind]
    earlier = discs.parent / "data" / "train_nodup"
    earlier.mkdir(parents=True)
    (earlier / "wav.scp").write_text("of an earlier run\n")
    damage(discs)
    fails(options(discs), message, refused)
    assert contents(discs.parent / "data") == {
        "train_nodup/wav.scp": b"of an earlier run\n"
    }
    assert [path.name for path in (discs.parent / "data").iterdir()] == ["train_nodup"]


def fails(command: list[str], message: str, refused: Refused) -> None:
    """The command ends with one line, which has the message in it."""
    assert message in refused(preparing.prepare_swbd_command, command)


BAD_OPTIONS = {
    "Fisher without text": (["--fisher_speech", "x"], "Fisher needs both"),
    "no development set": (["--dev_segments", "0"], "--dev_segments is 0"),
    "speakers of nobody": (["--dev_speakers", "exclude"], "needs --conv_tab"),
    "more than all": (["--max_lost", "101"], "--max_lost is 101.0, expected 0 to 100"),
    "negative cap": (["--max_duplicates", "-1"], "--max_duplicates is -1"),
    "all for development": (["--dev_segments", "999"], "change --dev_segments"),
}


@pytest.mark.parametrize("kind", BAD_OPTIONS)
def test_bad_options(kind: str, discs: Path, refused: Refused) -> None:
    more, message = BAD_OPTIONS[kind]
    fails([*options(discs, optional=False), *more], message, refused)
    assert not (discs.parent / "data").exists()


def test_somebody_elses_directory_stays(discs: Path, refused: Refused) -> None:
    thesis = discs.parent / "data" / "eval2000" / "thesis"
    thesis.mkdir(parents=True)
    fails(options(discs), "eval2000 is not empty", refused)
    assert [path.name for path in (discs.parent / "data").iterdir()] == ["eval2000"]
    assert thesis.exists()


def test_written_whole_or_not_at_all(
    discs: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """The last file of the last set can't be written: no set appears."""

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", full)
    fails(options(discs), "No space left on device", refused)
    assert not list((discs.parent / "data").iterdir())
