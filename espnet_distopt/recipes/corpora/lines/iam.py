"""The IAM handwriting database: English text lines of 657 writers.

The unpacked archives have these files, of which either the first or the second line is
needed, and the third:

    ascii/lines.txt, ascii/forms.txt            (ascii.tgz)
    xml/a01-000u.xml ...                        (xml.tgz)
    lines/a01/a01-000u/a01-000u-00.png ...      (lines.tgz)

In lines.txt `|` stands between words *and* before punctuation. It becomes a blank, as
is usual, so that the text is "Peers , he". The XML files have the text as it is
written, "Peers, he". Scores on the two texts do not compare.

The lists of a split decide which lines are used. The archive's own ones ("large writer
independent text line recognition task") have 6161 lines for training, 900 + 940 for
development and 1861 for test. The Aachen split has two versions, with 6482 or 6161, 976
or 966, and 2915 lines; users give its lists of ids themselves. Results on different
splits do not compare, so a report should name the split and its numbers of lines. The
mark `ok` or `err` of a line decides nothing: it tells whether the boxes of its words
are right, and the archive's own note says that image and transcript are not affected.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.errors import InputError
from espnet_distopt.files.text import data_lines, read_text
from espnet_distopt.recipes.corpora.lines.sets import LineDir, TextLine, normal_text
from espnet_distopt.recipes.corpora.lines.xml import local_name, read_xml

Split = Mapping[str, Mapping[str, str]]
"""The ids of lines or forms of each set, with the place `file:line` that lists each."""

OWN_LISTS = {
    "train": ("trainset.txt",),
    "dev": ("validationset1.txt", "validationset2.txt"),
    "test": ("testset.txt",),
}


@dataclass(frozen=True)
class IamLine:
    """A line of a form: its id, text and writer, and the place that lists it."""

    id: str
    text: str
    writer: str
    where: str

    @property
    def form(self) -> str:
        """Return the id of the form that the line is on, as `a01-000u`."""
        return self.id.rpartition("-")[0]


def own_lists(root: Path) -> dict[str, list[Path]]:
    """Find the archive's own lists, in `root` or in a directory of it.

    Raises:
        InputError: A list is missing, or is there twice.
    """
    return {
        name: [_find(root, file) for file in files] for name, files in OWN_LISTS.items()
    }


def read_split(lists: Mapping[str, Sequence[Path]]) -> dict[str, dict[str, str]]:
    """Read the lists of ids of each set, one id a line.

    Raises:
        InputError: A list is missing, empty or malformed, or an id is listed twice.
    """
    seen: dict[str, str] = {}
    split: dict[str, dict[str, str]] = {}
    for name, paths in lists.items():
        split[name] = {}
        for path in paths:
            for where, line in data_lines(read_text(path), path, comment="#"):
                fields = line.split()
                if len(fields) != 1:
                    raise InputError(f"{where}: expected one id of a line or a form")
                key = fields[0]
                if key in seen:
                    raise InputError(f"{where}: {key} is listed before, at {seen[key]}")
                seen[key] = split[name][key] = where
    return split


def assign(
    lines: Mapping[str, IamLine], split: Split
) -> tuple[dict[str, list[IamLine]], dict[str, dict[str, str]]]:
    """Give each set its lines.

    Returns:
        The lines of each set in the order of their ids; and the ids of each set that no
        line or form has, with the reason.

    Raises:
        InputError: A line is in two sets, for instance by its own id and by that of its
            form, or a set has no line.
    """
    forms: dict[str, list[str]] = {}
    for key, line in lines.items():
        forms.setdefault(line.form, []).append(key)
    owner: dict[str, str] = {}
    missing: dict[str, dict[str, str]] = {}
    for name, ids in split.items():
        missing[name] = {}
        for key, where in ids.items():
            found = [key] if key in lines else forms.get(key, [])
            if not found:
                missing[name][key] = f"no such line or form: {where}"
            for each in found:
                if each in owner:
                    raise InputError(f"{where}: {each} is also in set {owner[each]}")
                owner[each] = name
    sets: dict[str, list[IamLine]] = {name: [] for name in split}
    for key in sorted(owner):
        sets[owner[key]].append(lines[key])
    for name, chosen in sets.items():
        if not chosen:
            first = next(iter(missing[name].values()), "the list is empty")
            raise InputError(f"set {name} has no line: {first}")
    return sets, missing


def _find(root: Path, file: str) -> Path:
    found = sorted({*root.glob(file), *root.glob(f"*/{file}")})
    if not found:
        raise InputError(
            f"{root}: no {file} in it or in a directory of it: unpack "
            "largeWriterIndependentTextLineRecognitionTask.zip there, or give lists "
            "with --train_ids, --dev_ids and --test_ids"
        )
    if len(found) > 1:
        raise InputError(f"{root}: {file} is there twice: {found[0]} and {found[1]}")
    return found[0]


_LINE_ID = re.compile(r"(([a-z]\d\d)-\d{3}[a-z]?)-\d\d")


def read_iam(root: Path, split: Split) -> dict[str, LineDir]:
    """Read the lines of each set of a split.

    The id of a line starts with its writer: `000-a01-000u-00`.

    Returns:
        A data directory for each set. It lists as skipped the ids of the split that the
        archive lacks, and lines without text.

    Raises:
        InputError: A file is missing or malformed, an image is missing, or a set would
            be empty; the message names file and line.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no such directory of IAM")
    lines = _read_lines(root)
    sets, missing = assign(lines, split)
    _check_images(root, [line for chosen in sets.values() for line in chosen])
    return {
        name: _line_dir(root, chosen, missing[name]) for name, chosen in sets.items()
    }


def image_of(root: Path, line: str) -> Path:
    """Return the path of a line's image.

    >>> image_of(Path("iam"), "a01-000u-00").as_posix()
    'iam/lines/a01/a01-000u/a01-000u-00.png'
    """
    form = line.rpartition("-")[0]
    return root / "lines" / form.partition("-")[0] / form / f"{line}.png"


def _read_lines(root: Path) -> dict[str, IamLine]:
    ascii_lines = root / "ascii" / "lines.txt"
    if ascii_lines.exists():
        found = _from_ascii(ascii_lines, root / "ascii" / "forms.txt")
    elif files := sorted((root / "xml").glob("*.xml")):
        found = (line for file in files for line in _from_xml(file))
    else:
        raise InputError(
            f"{root}: expected ascii/lines.txt or xml/*.xml, unpacked from ascii.tgz "
            "or xml.tgz"
        )
    lines: dict[str, IamLine] = {}
    for line in found:
        if not _LINE_ID.fullmatch(line.id):
            raise InputError(f"{line.where}: expected a line as a01-000u-00: {line.id}")
        if line.id in lines:
            raise InputError(f"{line.where}: {line.id} comes twice")
        lines[line.id] = line
    if not lines:
        raise InputError(f"{root}: no line in ascii/lines.txt or xml/*.xml")
    return lines


def _from_ascii(path: Path, forms: Path) -> Iterator[IamLine]:
    writers = _writers(forms)
    for where, line in data_lines(read_text(path), path, comment="#"):
        # No further split, as a word of the text may have a blank in it.
        fields = line.split(" ", 8)
        if len(fields) != 9 or fields[1] not in ("ok", "err"):
            raise InputError(
                f"{where}: expected 'line ok|err grey parts x y width height text'"
            )
        key = fields[0]
        form = key.rpartition("-")[0]
        if form not in writers:
            raise InputError(f"{where}: form {form} is not in {forms}")
        text = normal_text(fields[8].replace("|", " "))
        yield IamLine(key, text, writers[form], where)


def _writers(path: Path) -> dict[str, str]:
    writers = {}
    for where, line in data_lines(read_text(path), path, comment="#"):
        fields = line.split()
        if len(fields) < 2:
            raise InputError(f"{where}: expected 'form writer ...'")
        writers[fields[0]] = fields[1]
    return writers


def _from_xml(path: Path) -> Iterator[IamLine]:
    form = read_xml(path)
    writer = form.get("writer-id")
    if local_name(form) != "form" or not writer:
        raise InputError(f"{path}: expected an element form with a writer-id")
    for number, line in enumerate(form.iter("line"), start=1):
        key, text = line.get("id"), line.get("text")
        where = f"{path}: line {number}"
        if key is None or text is None:
            raise InputError(f"{where}: expected the attributes id and text")
        # The archive escapes quotation marks twice.
        text = text.replace("&quot;", '"').replace("&amp;", "&")
        yield IamLine(key, normal_text(text), writer, where)


def _check_images(root: Path, lines: list[IamLine]) -> None:
    lost = [line for line in lines if not image_of(root, line.id).is_file()]
    if lost:
        more = f", nor {len(lost) - 1} others" if len(lost) > 1 else ""
        raise InputError(
            f"{lost[0].where}: {image_of(root, lost[0].id)} does not exist{more}: is "
            "lines.tgz unpacked into lines/?"
        )


def _line_dir(root: Path, lines: list[IamLine], missing: Mapping[str, str]) -> LineDir:
    skipped = dict(missing)
    kept = []
    for line in lines:
        if line.text:
            key = f"{line.writer}-{line.id}"
            image = str(image_of(root, line.id))
            kept.append(TextLine(key, image, line.text, line.writer))
        else:
            skipped[line.id] = f"without text: {line.where}"
    return LineDir.of(kept, skipped)
