"""IAM from a tiny tree in the layout of its archives, and from damaged ones."""

from pathlib import Path

import pytest

from espnet_distopt.files.tables import read_table
from espnet_distopt.recipes.commands.preparing import prepare_iam_command as main
from espnet_distopt.recipes.corpora.lines.iam import image_of
from espnet_distopt.recipes.corpora.lines.sets import LineDir
from tests.recipes.corpora.lines.line_files import save
from tests.refusal import Refused

LINES = """\
#--- lines.txt
#
a01-000u-00 ok 154 19 408 746 1661 89 A|MOVE|to|stop|Mr.|Gaitskell|,|he|'s
a01-000u-01 err 156 19 395 932 1850 105 the|M Ps|agreed|.
b02-001-00 ok 156 19 395 932 1850 105 "|Yes|"|&|no
c03-003a-00 ok 156 19 395 932 1850 105 nominating
c03-003a-01 ok 156 19 395 932 1850 105 any|more
d04-004-00 ok 156 19 395 932 1850 105 in|no|set
"""
FORMS = """\
# forms.txt
a01-000u 000 2 prt 7 5 52 36
b02-001 001 2 prt 7 5 52 36
c03-003a 000 2 prt 7 5 52 36
d04-004 002 2 prt 7 5 52 36
"""
XML = """\
<?xml version="1.0" encoding="ISO-8859-1"?>
<!DOCTYPE form SYSTEM "form.dtd">
<form id="{form}" writer-id="{writer}"><machine-printed-part/>
<handwritten-part>{lines}</handwritten-part></form>
"""
LISTS = {
    "trainset.txt": "a01-000u-00\na01-000u-01\n",
    "validationset1.txt": "b02-001-00\n",
    "validationset2.txt": "b02-001-09\n",
    "testset.txt": "c03-003a-00\nc03-003a-01\n",
}


@pytest.fixture
def iam(tmp_path: Path) -> Path:
    root = tmp_path / "iam"
    (root / "ascii").mkdir(parents=True)
    (root / "ascii" / "lines.txt").write_text(LINES)
    (root / "ascii" / "forms.txt").write_text(FORMS)
    for line in LINES.splitlines()[2:]:
        save(image_of(root, line.split()[0]))
    (root / "task").mkdir()
    for name, text in LISTS.items():
        (root / "task" / name).write_text(text)
    return root


def prepare(iam: Path, *options: str) -> dict[str, LineDir]:
    out = iam.parent / "data"
    main(["--iam", str(iam), "--out", str(out), *options])
    return {name: LineDir.read(out / name) for name in ("train", "dev", "test")}


def test_own_lists(iam: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = prepare(iam)
    assert sets["train"].text == {
        "000-a01-000u-00": "A MOVE to stop Mr. Gaitskell , he 's",
        "000-a01-000u-01": "the M Ps agreed .",
    }
    assert sets["dev"].text == {"001-b02-001-00": '" Yes " & no'}
    assert sets["test"].utt2spk == {"000-c03-003a-00": "000", "000-c03-003a-01": "000"}
    assert sets["dev"].images["001-b02-001-00"] == str(
        iam / "lines" / "b02" / "b02-001" / "b02-001-00.png"
    )
    skipped = read_table(iam.parent / "data" / "dev" / "skipped.txt", str)
    assert list(skipped) == ["b02-001-09"]
    assert "no such line or form" in skipped["b02-001-09"]
    out = capsys.readouterr().out
    assert "test: 1 of its writers are also in train" in out and "dev: " not in out


def lists(iam: Path, **texts: str) -> list[str]:
    """Write lists of ids; return the options that name them."""
    options = []
    for name, text in texts.items():
        (iam / f"{name}.lst").write_text(text)
        options += [f"--{name}_ids", str(iam / f"{name}.lst")]
    return options


def test_lists_of_forms_or_lines(iam: Path) -> None:
    train = "a01-000u\nd04-004-00\n"
    sets = prepare(iam, *lists(iam, train=train, dev="b02-001\n", test="c03-003a"))
    assert [len(each.text) for each in sets.values()] == [3, 1, 2]


def test_all_sets_are_replaced_or_none(iam: Path, refused: Refused) -> None:
    before, out = prepare(iam), iam.parent / "data"
    (out / "test" / "images.scp").rename(out / "test" / "thesis")
    options = lists(iam, train="b02-001", dev="a01-000u", test="c03-003a")
    error = refused(main, ["--iam", str(iam), "--out", str(out), *options])
    assert f"{out}/test is not empty" in error
    for name in ("train", "dev"):
        assert LineDir.read(out / name).text == before[name].text


def test_xml_has_the_text_as_written(iam: Path) -> None:
    (iam / "ascii" / "lines.txt").unlink()
    (iam / "xml").mkdir()
    texts = {
        ("a01-000u", "000"): ["A MOVE to stop Mr. Gaitskell, he's", "the M Ps agreed."],
        ("b02-001", "001"): ["&amp;quot;Yes&amp;quot; &amp;amp; no"],
        ("c03-003a", "000"): ["nominating", "any more"],
    }
    for (form, writer), lines in texts.items():
        elements = "".join(
            f'<line id="{form}-{number:02}" text="{text}" segmentation="ok"/>'
            for number, text in enumerate(lines)
        )
        (iam / "xml" / f"{form}.xml").write_text(
            XML.format(form=form, writer=writer, lines=elements)
        )
    sets = prepare(iam)
    assert list(sets["train"].text.values()) == texts["a01-000u", "000"]
    assert sets["dev"].text == {"001-b02-001-00": '"Yes" & no'}


def test_lines_without_text_are_listed(iam: Path) -> None:
    lines = iam / "ascii" / "lines.txt"
    lines.write_text(lines.read_text().replace("any|more", "|"))
    assert list(prepare(iam)["test"].text) == ["000-c03-003a-00"]
    skipped = read_table(iam.parent / "data" / "test" / "skipped.txt", str)
    assert skipped == {"c03-003a-01": f"without text: {lines}:7"}


def _write(name: str, old: str, new: str):
    def change(iam: Path) -> None:
        text = (iam / name).read_text()
        assert old in text
        (iam / name).write_text(text.replace(old, new))

    return change


def _xml(text: str):
    def change(iam: Path) -> None:
        (iam / "ascii" / "lines.txt").unlink()
        (iam / "xml").mkdir()
        (iam / "xml" / "a01-000u.xml").write_text(text)

    return change


BAD = {
    "no directory": (
        lambda iam: iam.rename(iam.with_name("x")),
        "iam: no trainset.txt",
    ),
    "no transcripts": (
        lambda iam: (iam / "ascii" / "lines.txt").unlink(),
        "iam: expected ascii/lines.txt or xml/*.xml",
    ),
    "only comments": (
        lambda iam: (iam / "ascii" / "lines.txt").write_text("# none\n"),
        "no line in ascii/lines.txt",
    ),
    "cut line": (
        _write("ascii/lines.txt", " 105 any|more", ""),
        "lines.txt:7: expected 'line ok|err grey parts",
    ),
    "strange id": (
        lambda iam: (_write("ascii/lines.txt", "d04-004-00", "d04-004-x")(iam),),
        "lines.txt:8: expected a line as a01-000u-00: d04-004-x",
    ),
    "twice": (
        _write("ascii/lines.txt", "c03-003a-01", "c03-003a-00"),
        "lines.txt:7: c03-003a-00 comes twice",
    ),
    "form without writer": (
        _write("ascii/forms.txt", "b02-001 001 2 prt 7 5 52 36", "b02-001"),
        "forms.txt:3: expected 'form writer ...'",
    ),
    "unknown form": (
        _write("ascii/forms.txt", "b02-001 001", "b02-002 001"),
        "lines.txt:5: form b02-001 is not in",
    ),
    "no image": (lambda iam: image_of(iam, "b02-001-00").unlink(), "lines.txt:5: "),
    "list of two columns": (
        _write("task/testset.txt", "c03-003a-00", "c03-003a-00 x"),
        "testset.txt:1: expected one id",
    ),
    "in two lists": (
        _write("task/testset.txt", "c03-003a-00", "a01-000u-00"),
        "testset.txt:1: a01-000u-00 is listed before, at",
    ),
    "form in one list, line in another": (
        _write("task/testset.txt", "c03-003a-00", "a01-000u"),
        "testset.txt:1: a01-000u-00 is also in set train",
    ),
    "lists twice": (
        lambda iam: (iam / "trainset.txt").write_text("x"),
        "trainset.txt is there twice",
    ),
    "set of nothing": (
        _write("task/validationset1.txt", "b02-001-00", "b02-009-00"),
        "set dev has no line: no such line or form: ",
    ),
    "other xml": (_xml("<page/>"), "expected an element form with a writer-id"),
    "xml line without text": (
        _xml('<form writer-id="1"><line id="a01-000u-00"/></form>'),
        "a01-000u.xml: line 1: expected the attributes id and text",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str, iam: Path, refused: Refused) -> None:
    change, message = BAD[name]
    change(iam)
    out = iam.parent / "data"
    options = ["--iam", str(iam), "--out", str(out)]
    assert message in refused(main, options)
    assert not out.exists()


def test_all_lists_or_none(iam: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        prepare(iam, "--train_ids", str(iam / "task" / "trainset.txt"))
    assert "expected --train_ids, --dev_ids and --test_ids" in capsys.readouterr().err
