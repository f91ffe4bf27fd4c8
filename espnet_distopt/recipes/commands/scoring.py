"""Commands that score what was decoded, and show the results."""

import argparse
import base64
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from difflib import SequenceMatcher
from html import escape
from pathlib import Path

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.names import distinguishing_names
from espnet_distopt.files.text import read_bytes, read_text
from espnet_distopt.files.writing import (
    explain_failed_write,
    remove_earlier,
    write_text,
)
from espnet_distopt.recipes.commands.options import add_halves, read_speakers
from espnet_distopt.recipes.corpora.hub5.ctm import format_ctm, read_ctm, words_by_side
from espnet_distopt.recipes.scoring.report import DecodedExperiment, Environment, render
from espnet_distopt.recipes.scoring.result import (
    AS_IS,
    CER,
    FILES,
    FILTERED,
    Result,
    Scorer,
    add_up,
    read_lines,
    score,
    score_lines,
)
from espnet_distopt.recipes.scoring.scorers import (
    CTM,
    REPORTS,
    Hubscr,
    Jiwer,
    count_normalized,
    find_hubscr,
    find_sclite,
    is_installed,
)
from espnet_distopt.recipes.scoring.sides import (
    ConversationSide,
    add_words,
    check_known,
    read_sides,
)
from espnet_distopt.recipes.scoring.trn import (
    check_same_utterances,
    format_trn,
    parse_halves,
    read_transcripts,
)
from espnet_distopt.recipes.scoring.worst import (
    FILE,
    WorstLine,
    worst_lines,
    worst_segments,
    write_worst,
)

_WRITTEN = ("ref.trn", "hyp.trn", *FILES, FILE)


def score_parser() -> argparse.ArgumentParser:
    """Return the parser of `score`."""
    parser = argparse.ArgumentParser(
        description="Count word errors. Writes ref.trn, hyp.trn, result.txt, "
        "result.json and, for reports, worst.json into --out. An utterance decoded to "
        "nothing counts as deletions; an utterance missing from the hypotheses is an "
        "error.",
    )
    add = parser.add_argument
    add("--ref", type=Path, required=True, help="reference `text`")
    add("--hyp", type=Path, required=True, help="decoded `text`")
    add("--out", type=Path, required=True, help="directory to write")
    add("--utt2spk", type=Path, help="speakers, for the trn ids")
    add_halves(parser, "utterances whose id")
    add(
        "--scorer",
        choices=("auto", "sclite", "jiwer"),
        default="auto",
        help="auto: sclite if installed, else jiwer (default)",
    )
    add("--sctk", metavar="PATH", help="sclite or sctk to use")
    return parser


@one_line_errors
def score_command(cmd: Sequence[str] | None = None) -> None:
    """Score decoded text against its reference: words, by sclite or else by jiwer."""
    args = score_parser().parse_args(cmd)
    remove_earlier(args.out, *_WRITTEN, inputs=(args.ref, args.hyp, args.utt2spk))
    halves = parse_halves(args.half)
    ref, hyp = read_transcripts(args.ref), read_transcripts(args.hyp)
    check_same_utterances(ref, hyp, args.ref, args.hyp)
    speakers = read_speakers(args.utt2spk, ref)
    result = score(ref, hyp, halves, _scorer(args.scorer, args.sctk))
    with explain_failed_write(args.out):
        args.out.mkdir(parents=True, exist_ok=True)
        write_text(args.out / "ref.trn", format_trn(ref, speakers))
        write_text(args.out / "hyp.trn", format_trn(hyp, speakers))
        write_worst(args.out, worst_lines(ref, hyp))
        result.write(args.out)
    print(result.summary(), end="")


def _scorer(choice: str, path: str | None) -> Scorer:
    if choice == "jiwer":
        return Jiwer()
    sclite = find_sclite(path)
    if sclite is not None:
        return sclite
    if choice == "sclite":
        raise InputError("sclite is not installed (Debian: apt-get install sctk)")
    return Jiwer()


def score_hub5_parser() -> argparse.ArgumentParser:
    """Return the parser of `score_hub5`."""
    parser = argparse.ArgumentParser(
        description="Count word errors as the Hub5 evaluations do. Writes result.txt, "
        "result.json and hubscr's reports into --out. Hesitations, cut-off words and "
        "tags are dropped from the CTM first, as Kaldi's and ESPnet's recipes do; with "
        "--ctm_as_is they count, as in NIST's evaluations.",
    )
    add = parser.add_argument
    add("--stm", type=Path, required=True, help="reference")
    add("--glm", type=Path, required=True, help="mapping rules")
    add("--ctm", type=Path, required=True, help="recognized words with times")
    add("--out", type=Path, required=True, help="directory to write")
    add(
        "--ctm_as_is",
        action="store_true",
        help="give all words of the CTM to hubscr; the result is then hubscr's own",
    )
    add_halves(parser, "sides (as sw_4390-A) whose name")
    add(
        "--scorer",
        choices=("auto", "hubscr", "jiwer"),
        default="auto",
        help="auto: hubscr if installed, else jiwer on normalised text (default)",
    )
    add("--sctk", metavar="PATH", help="SCTK: its directory, or a program of it")
    return parser


@one_line_errors
def score_hub5_command(cmd: Sequence[str] | None = None) -> None:
    """Score word times against a Hub5 reference: hubscr's counts by half and side."""
    parser = score_hub5_parser()
    args = parser.parse_args(cmd)
    if args.ctm_as_is and args.scorer == "jiwer":
        parser.error("--ctm_as_is is for hubscr: jiwer drops what is not normalised")
    inputs = (args.stm, args.glm, args.ctm)
    remove_earlier(args.out, *FILES, FILE, CTM, *REPORTS, inputs=inputs)
    halves = parse_halves(args.half)
    sides = read_sides(args.stm)
    read_bytes(args.glm)
    score = _score_as_is if args.ctm_as_is else _score_filtered
    with explain_failed_write(args.out):
        result = score(sides, halves, args)
        if not args.ctm_as_is:  # As it is, only hubscr knows which words are scored.
            write_worst(args.out, worst_segments(sides))
        result.write(args.out)
    print(result.summary(), end="")


def _score_filtered(
    sides: dict[str, ConversationSide],
    halves: Mapping[str, str],
    args: argparse.Namespace,
) -> Result:
    add_words(sides, read_ctm(args.ctm), args.stm, args.ctm)
    words = [word for side in sides.values() for word in side.words]
    _tell_if_empty(words, args.ctm)
    hubscr = _find_hubscr(args.scorer, args.sctk)
    args.out.mkdir(parents=True, exist_ok=True)
    normalized = None
    if hubscr is None or is_installed():
        name = f"{Jiwer().label}, normalised text"
        normalized = add_up(name, count_normalized(sides), halves, ctm=FILTERED)
    if hubscr is None:
        assert normalized is not None
        return normalized
    counts = hubscr.count(sides, args.stm, args.glm, format_ctm(words), args.out)
    return add_up(hubscr.label, counts, halves, normalized, FILTERED)


def _score_as_is(
    sides: dict[str, ConversationSide],
    halves: Mapping[str, str],
    args: argparse.Namespace,
) -> Result:
    recognized = words_by_side(args.ctm)
    check_known(sides, recognized, args.stm, args.ctm)
    _tell_if_empty(recognized, args.ctm)
    hubscr = _find_hubscr("hubscr", args.sctk)
    assert hubscr is not None
    args.out.mkdir(parents=True, exist_ok=True)
    ctm = read_text(args.ctm, may_be_empty=True)
    counts = hubscr.count(sides, args.stm, args.glm, ctm, args.out)
    return add_up(hubscr.label, counts, halves, ctm=AS_IS)


def _tell_if_empty(words: Sized, ctm: Path) -> None:
    if not words:
        print(f"{ctm}: no word to score: all words of the reference count as deleted")


def _find_hubscr(choice: str, path: str | None) -> Hubscr | None:
    if choice == "jiwer":
        return None
    found = find_hubscr(path)
    if found is None and choice == "hubscr":
        raise InputError("hubscr is not installed (Debian: apt-get install sctk)")
    if found is None:
        print("no hubscr (SCTK) found: scoring with jiwer; not a hub5 figure")
    return found


def score_lines_parser() -> argparse.ArgumentParser:
    """Return the parser of `score_lines`."""
    parser = argparse.ArgumentParser(
        description="Count character and word errors of text lines with jiwer. Writes "
        "result.txt and result.json into OUT/score_cer and OUT/score_wer, and, for "
        "reports, the worst lines into OUT/score_cer/worst.json. A line "
        "decoded to nothing counts as deletions; a line missing from the hypotheses, "
        "or without a reference text, is an error.",
    )
    add = parser.add_argument
    add("--ref", type=Path, required=True, help="reference `text`")
    add("--hyp", type=Path, required=True, help="decoded `text`")
    add("--out", type=Path, required=True, help="directory to write to")
    add(
        "--utt2spk",
        type=Path,
        help="writers or fonts, over which the 95 %% intervals are taken (default: "
        "over lines)",
    )
    add_halves(parser, "lines whose id")
    return parser


@one_line_errors
def score_lines_command(cmd: Sequence[str] | None = None) -> None:
    """Score decoded text lines against their reference: characters and words."""
    args = score_lines_parser().parse_args(cmd)
    outs = [args.out / "score_cer", args.out / "score_wer"]
    written = [f"{out.name}/{name}" for out in outs for name in (*FILES, FILE)]
    remove_earlier(args.out, *written, inputs=(args.ref, args.hyp, args.utt2spk))
    halves = parse_halves(args.half)
    ref, hyp = read_lines(args.ref, args.hyp)
    writers = read_speakers(args.utt2spk, ref)
    results = score_lines(ref, hyp, writers, halves)
    with explain_failed_write(args.out):
        for out, result in zip(outs, results, strict=True):
            out.mkdir(parents=True, exist_ok=True)
            if result.measure == CER:
                write_worst(out, worst_lines(ref, hyp, characters=True))
            result.write(out)
    for result in results:
        print(result.summary(), end="")


def wer_report_parser() -> argparse.ArgumentParser:
    """Return the parser of `wer_report`."""
    parser = argparse.ArgumentParser(
        description="Print a Markdown table of word and character error rates, one row "
        "for each way in which an experiment was decoded, from the results that "
        "scoring wrote below it. What is not a scored experiment is left out, so that "
        "exp/* may be given.",
    )
    add = parser.add_argument
    add("experiments", type=Path, nargs="+", metavar="EXP")
    add("--title", default="Results", help="heading of the report")
    add("--note", help="sentence to stand above the figures")
    add("--command", help="command that made the results")
    return parser


@one_line_errors
def wer_report_command(cmd: Sequence[str] | None = None) -> None:
    """Print the results of a recipe's experiments as one Markdown report."""
    args = wer_report_parser().parse_args(cmd)
    experiments = [
        decoded
        for path, name in zip(
            args.experiments, distinguishing_names(args.experiments), strict=True
        )
        for decoded in DecodedExperiment.read(path, name)
    ]
    scored = [experiment for experiment in experiments if experiment.results]
    for experiment in experiments:
        if not experiment.results:
            print(f"{experiment.name}: not scored, left out", file=sys.stderr)
    if not scored:
        raise InputError(
            f"{args.experiments[0]}: no */*/score_[cw]er/result.json in any "
            "experiment: score first"
        )
    environment = Environment.current()
    report = render(
        scored, environment, title=args.title, command=args.command, note=args.note
    )
    print(report, end="")


_STYLE = """\
body { font: 16px/1.5 sans-serif; margin: auto; max-width: 70rem; padding: 1rem; }
img { max-height: 4rem; max-width: 100%; }
p { margin: 0; white-space: pre-wrap; }
b { background: #ffd9d0; }
"""


def error_sheet_parser() -> argparse.ArgumentParser:
    """Return the parser of `error_sheet`."""
    parser = argparse.ArgumentParser(
        description="Write a page (HTML) of the lines with the most wrong characters: "
        "each image, and below it reference and hypothesis with what differs marked.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="has feats.scp or images.scp")
    add("--ref", type=Path, required=True, help="reference `text`")
    add("--hyp", type=Path, required=True, help="decoded `text`")
    add("--out", type=Path, required=True, help="page to write")
    add("--most", type=int, default=40, help="lines to show")
    return parser


@one_line_errors
def error_sheet_command(cmd: Sequence[str] | None = None) -> None:
    """Show the worst lines of a decoding on one page: the images, and what was read."""
    args = error_sheet_parser().parse_args(cmd)
    remove_earlier(args.out, inputs=(args.ref, args.hyp))
    ref, hyp = read_lines(args.ref, args.hyp)
    chosen = worst_lines(ref, hyp, characters=True, most=args.most)
    page = "\n".join(_page(chosen, _images(args.data))) + "\n"
    with explain_failed_write(args.out):
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_text(args.out, page)
    print(f"{args.out}: the worst {len(chosen)} of {len(ref)} lines")


def _page(
    lines: Sequence[WorstLine], image_of: Callable[[str], bytes]
) -> Iterator[str]:
    yield f'<!doctype html>\n<meta charset="utf-8">\n<style>\n{_STYLE}</style>'
    yield "<title>Worst lines</title>\n<h1>Worst lines</h1>"
    for line in lines:
        png = base64.b64encode(image_of(line.id)).decode()
        ref, hyp = _marked(line.ref, line.hyp)
        yield f"<h2>{escape(line.id)}: {line.errors} of {line.length}</h2>"
        yield f'<img alt="" src="data:image/png;base64,{png}">'
        yield f'<p dir="auto">{ref}</p>\n<p dir="auto">{hyp}</p>'


def _marked(ref: str, hyp: str) -> tuple[str, str]:
    """Return both texts as HTML, with the characters that differ in bold."""
    texts: tuple[list[str], list[str]] = [], []
    changes = SequenceMatcher(None, ref, hyp, autojunk=False).get_opcodes()
    for kind, a, b, c, d in changes:
        for text, part in zip(texts, (ref[a:b], hyp[c:d]), strict=True):
            shown = escape(part)
            text.append(shown if kind == "equal" or not shown else f"<b>{shown}</b>")
    return "".join(texts[0]), "".join(texts[1])


def _images(data: Path) -> Callable[[str], bytes]:
    """Return what reads the image of a line, by its id, as PNG.

    Raises:
        InputError: The directory has neither `images.scp` nor `feats.scp`. What is
            returned raises it for a line that is not there, or cannot be read.
    """
    import numpy as np
    from PIL import Image

    from espnet_distopt.files.tables import read_table
    from espnet_distopt.recipes.corpora.kaldi.arks import read_matrix
    from espnet_distopt.recipes.corpora.lines.images import read_image

    names = (data / "images.scp", data / "feats.scp")
    scp = next((path for path in names if path.is_file()), None)
    if scp is None:
        raise InputError(f"{data}: neither images.scp nor feats.scp")
    places = read_table(scp, str)

    def image_of(line: str) -> bytes:
        if line not in places:
            raise InputError(f"{scp}: line {line} is not in it")
        if scp.name == "images.scp":
            gray = read_image(Path(places[line]))
        else:
            ink = read_matrix(places[line])
            gray = (255 - 255 * ink.T.clip(0, 1)).astype(np.uint8)
        png = io.BytesIO()
        Image.fromarray(gray).save(png, format="png")
        return png.getvalue()

    return image_of
