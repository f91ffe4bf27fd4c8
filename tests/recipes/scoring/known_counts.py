"""References and hypotheses whose counts are known, for tests of a scorer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from espnet_distopt.recipes.corpora.hub5.ctm import Word, write_ctm

Known = str
"""The numbers of correct, substituted, deleted and inserted words, as `2010`."""

Texts = tuple[tuple[float, float, str], ...]
"""The start and end (seconds) and the text of each stretch of speech."""


@dataclass(frozen=True)
class KnownCase:
    """A conversation side and its known counts.

    Attributes:
        name: What the case tests.
        reference: The segments of the STM.
        recognized: The recognized stretches, whose words are spread evenly over them.
        hubscr: The counts with alternatives, optional words and fragments.
        jiwer: The counts on normalised text; None if they are the same.
    """

    name: str
    reference: Texts
    recognized: Texts
    hubscr: Known
    jiwer: Known | None = None


def _case(
    name: str, ref: str, hyp: str, hubscr: Known, jiwer: Known | None = None
) -> KnownCase:
    return KnownCase(name, ((0, 9, ref),), ((0, 9, hyp),), hubscr, jiwer)


# To sclite an optional word that was left out is correct; normalised text lacks it.
CASES = (
    _case("all correct", "one two three", "one two three", "3000"),
    _case("substitution", "one two three", "one too three", "2100"),
    _case("deletion", "one two three", "one three", "2010"),
    _case("insertion", "one two three", "one two oh three", "3001"),
    _case("nothing recognized", "one two three", "", "0030"),
    _case("capitals", "One TWO three", "ONE two Three", "3000"),
    _case("GLM: both forms, long", "we're here", "we are here", "3000", "1101"),
    _case("GLM: both forms, short", "we're here", "we're here", "3000", "2000"),
    _case("GLM: spelling", "okay then", "ok then", "2000", "1100"),
    _case("GLM: two words for one", "alright", "all right", "2000", "0101"),
    _case("optional word taken", "(yes) i know", "yes i know", "3000", "2001"),
    _case("optional word left out", "(yes) i know", "i know", "3000", "2000"),
    _case("optional word wrong", "(yes) i know", "no i know", "2100", "2001"),
    _case("hesitations", "(%HESITATION) i know", "um i uh know", "3000", "2000"),
    _case("cut-off words", "i (kn-) know", "i kn- know th-", "3000", "2000"),
    _case("fragment of a word", "a do- dog", "a down dog", "3000", "2001"),
    _case("tags", "one two", "[noise] one <unk> two", "2000"),
    _case("hyphens", "a so-called dog", "a so called dog", "4000"),
    _case("letters", "I. B. M.'s a T. V.", "i b m's a t v", "6000"),
    _case("alternative: first", "{ a / the / @ } cat", "a cat", "2000"),
    _case("alternative: second", "{ a / the / @ } cat", "the cat", "2000", "1100"),
    _case("alternative: nothing", "{ a / the / @ } cat", "cat", "1000", "1010"),
    KnownCase(
        "ignored segment",
        ((0, 4, "one"), (4, 6, "IGNORE_TIME_SEGMENT_IN_SCORING"), (6, 9, "two")),
        ((0, 4, "one"), (4, 6, "oh what oh"), (6, 9, "two")),
        "2000",
    ),
    KnownCase(
        "words between segments go to the later",
        ((0, 2, "one two"), (6, 9, "three")),
        ((0, 2, "one two"), (3, 4, "oh"), (6, 9, "three")),
        "3001",
    ),
    KnownCase(
        "words after the last segment",
        ((0, 2, "one two"), (3, 4, "three")),
        ((0, 2, "one two"), (8, 9, "three")),
        "3000",
    ),
    KnownCase(
        "a word over a boundary belongs where its middle is",
        ((0, 4, "one"), (4, 9, "two three")),
        ((0, 3, "one"), (3.5, 5, "two"), (5, 9, "three")),
        "3000",
    ),
    KnownCase(
        "words of a segment do not serve its neighbour",
        ((0, 4, "one two"), (4, 9, "three")),
        ((0, 2, "one"), (5, 9, "two three")),
        "2011",
    ),
    KnownCase(
        "letters of a segment spell none of its neighbour",
        ((0, 4, "so i"), (4, 9, "T. V.")),
        ((0, 4, "so i"), (4, 9, "t v")),
        "4000",
    ),
    KnownCase(
        "segment without words",
        ((0, 4, ""), (4, 9, "one")),
        ((0, 4, "oh"), (4, 9, "one")),
        "1001",
    ),
)

_STM_HEADER = ';; LABEL "O" "Overall" "Overall"\n'

_GLM = """\
;; Rules of the known counts
* name "known_counts.glm"
* desc "both forms of a contraction, spellings, hesitations"
* format = 'NIST1'
* max_nrules = '1000'
* copy_no_hit = 'T'
* case_sensitive = 'F'

uh => %HESITATION / [ ] __ [ ]
um => %HESITATION / [ ] __ [ ]
ok => okay / [ ] __ [ ]
alright => all right / [ ] __ [ ]
we're => { we are / we're } / [ ] __ [ ]
"""


def side(number: int) -> tuple[str, str]:
    """Return the file and the channel of a case; two cases are the sides of a call."""
    return f"sw_{4000 + number // 2}", "AB"[number % 2]


def write_task(directory: Path) -> list[str]:
    """Write STM, GLM and CTM of all cases, and return the options that name them."""
    lines = [
        f"{file} {channel} {file}_{channel} {start:.2f} {end:.2f} <O> {text}\n"
        for number, case in enumerate(CASES)
        for file, channel in [side(number)]
        for start, end, text in case.reference
    ]
    paths = {name: directory / name for name in ("stm", "glm", "ctm")}
    paths["stm"].write_text(_STM_HEADER + "".join(lines), encoding="utf-8")
    paths["glm"].write_text(_GLM, encoding="utf-8")
    write_ctm(paths["ctm"], list(_words()))
    return [text for name, path in paths.items() for text in (f"--{name}", str(path))]


def _words() -> Iterator[Word]:
    for number, case in enumerate(CASES):
        file, channel = side(number)
        for start, end, text in case.recognized:
            texts = text.split()
            for place, word in enumerate(texts):
                step = (end - start) / len(texts)
                yield Word(file, channel, start + place * step, step, word)
