"""The telephone part of the Rich Transcription 2003 evaluation (LDC2007S10)."""

from collections.abc import Callable
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import mend_stm
from espnet_distopt.corpora.hub5.pem import check_overlaps
from espnet_distopt.corpora.hub5.stm import Reference, check_labels, parse_stm
from espnet_distopt.corpora.ldc.discs import find_files, name_recordings
from espnet_distopt.corpora.ldc.evaluation import Evaluation, evaluation_set
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_bytes, read_text

_AUDIO = Path("data", "audio", "eval03", "english", "cts")
_REFERENCES = Path("data", "references", "eval03", "english", "cts")
_RULES = Path("data", "trans_rules", "en20030506.glm")
_LETTERS = {"1": "A", "2": "B", "A": "A", "B": "B"}
_GAP = "inter_segment_gap"
"""The speaker of stretches between utterances, which are not scored."""


def read_rt03(root: Path, log: Callable[[str], None] = print) -> Evaluation:
    """Read the evaluation set.

    Channels 1 and 2 of the STM files become A and B, and gaps between segments are left
    out. The disc has no PEM; its STM files say what to recognise.

    Args:
        root: The disc, or a directory that holds it as `rt_03`.
        log: Called with a line for everything that is odd but no error.

    Raises:
        InputError: A directory or file is missing, or a line is bad in a way that the
            scorer does not take.
    """
    root = _disc(root)
    audio = name_recordings(find_files(root / _AUDIO, r".*\.sph"))
    paths = find_files(root / _REFERENCES, r".*\.stm")
    if not paths:
        raise InputError(f"{root / _REFERENCES}: no references (*.stm) below it")
    read_bytes(root / _RULES)
    references: list[Reference] = []
    lines: list[str] = []
    for path in paths:
        text = _as_in_2000(mend_stm(read_text(path)), path)
        references += parse_stm(text, path, log)
        lines += filter(None, text.split("\n"))
    check_overlaps((reference.span for reference in references), log)
    # Every file declares the same labels, so of equal comments one is enough.
    lines.sort(key=lambda line: not line.startswith(";;"))
    stm = "".join(f"{line}\n" for line in dict.fromkeys(lines))
    check_labels(stm, references)
    speech_set = evaluation_set("rt03", audio, references, log)
    return Evaluation(speech_set, stm, root / _RULES)


def _disc(root: Path) -> Path:
    for place in (root, root / "rt_03"):
        if (place / "data").is_dir():
            return place
    raise InputError(f"{root}: expected the disc LDC2007S10, with {_AUDIO} below it")


def _as_in_2000(text: str, path: Path) -> str:
    """Empty the lines of gaps, and name channels by letters; no line moves."""
    lines = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        fields = line.split(maxsplit=2)
        if line.startswith(";;") or len(fields) < 3:
            lines.append(line)  # a comment, or a fault that the parser reports
        elif fields[1].upper() not in _LETTERS:
            raise InputError(f"{path}:{number}: expected channel 1 or 2: {line[:60]!r}")
        elif fields[2].split()[0] == _GAP:
            lines.append("")
        else:
            lines.append(f"{fields[0]} {_LETTERS[fields[1].upper()]} {fields[2]}")
    return "\n".join(lines)
