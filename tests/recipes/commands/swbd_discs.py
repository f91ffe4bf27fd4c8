"""A few seconds of silence on discs as the LDC's: Switchboard, Hub5, Fisher, RT-03."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from espnet_distopt.recipes.corpora.audio.sphere import write_sphere
from espnet_distopt.recipes.corpora.hub5.stm import Reference, Span, write_stm
from espnet_distopt.recipes.corpora.ldc.ms98 import (
    Entry,
    Ms98Segment,
    write_dictionary,
    write_transcript,
)
from espnet_distopt.recipes.corpora.ldc.swbd import write_conv_tab
from espnet_distopt.recipes.corpora.mini_swbd.corpus import STM_HEADER, glm_text

SECONDS = 10
TEXTS = ["hello this is IBM", "uh-huh [laughter]", "[noise]", "th[at]- that's right"]
FE = "fe_03_00001"
FSH = "fsh_60262"


def write_discs(root: Path) -> None:
    """Four conversations for training, two for testing, one of Fisher, one of RT-03."""
    pins = {"A": "1000", "B": "1001"}  # of conversation 2001, and of 2004 reversed
    callers = {}
    for number in ("2001", "2002", "2003", "2004"):
        audio(root / "swb1" / f"swb1_d{number[-1]}" / "data" / f"sw0{number}.sph")
        for side in "AB":
            write_transcript(root / "ms98", number, side, segments(TEXTS))
            callers[f"sw0{number}-{side}"] = number + str("AB".index(side))
    callers |= {"sw02001-A": pins["A"], "sw02001-B": pins["B"]}
    callers |= {"sw02004-A": pins["B"], "sw02004-B": "1009"}
    write_dictionary(root / "ms98", [Entry("IBM", tuple(["ay", "b", "iy", "eh", "m"]))])
    write_conv_tab(root / "conv.tab", callers)
    write_hub5(root)
    write_fisher(root)
    write_rt03(root / "rt03" / "data")


def audio(path: Path, channels: int = 2, rate: int = 8000) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_sphere(path, np.zeros((SECONDS * rate, channels), np.int16), rate)


def segments(texts: Sequence[str]) -> list[Ms98Segment]:
    return [
        Ms98Segment(2.0 * n + 0.5, 2.0 * n + 2.0, text) for n, text in enumerate(texts)
    ]


def write_hub5(root: Path) -> None:
    references = []
    for name in ("en_4156", "sw_4390"):
        audio(root / "hub5e_00" / "english" / f"{name}.sph")
        label = "O,CHE" if name[0] == "e" else "O,SWB"
        for channel in "AB":
            references += [
                Reference(Span(name, channel, 1.0, 2.5), label, "hello i. b. m."),
                Reference(Span(name, channel, 3.0, 4.5), label, "(%HESITATION)"),
            ]
    text = root / "hub5e_text" / "reference"
    text.mkdir(parents=True)
    write_stm(text / "hub5e00.english.000405.stm", STM_HEADER, references)
    (text / "en20000405_hub5.glm").write_text(glm_text())


def write_fisher(root: Path) -> None:
    audio(root / "fisher" / "sph" / "fe_03_p1_sph1" / "000" / f"{FE}.sph")
    text = root / "fisher" / "text" / "data" / "trans" / "000" / f"{FE}.txt"
    text.parent.mkdir(parents=True)
    text.write_text(
        f"# {FE}.sph\n# Transcribed by nobody\n\n1.00 2.00 A: hello\n\n"
        "2.50 3.50 B: hi [laughter] this is ((\n\n4.00 5.00 A: ((sure))\n"
        "6.00 7.00 B: i work at i._b._m.\n"
    )


def write_rt03(data: Path) -> None:
    audio(data / "audio" / "eval03" / "english" / "cts" / f"{FSH}.sph")
    stm = data / "references" / "eval03" / "english" / "cts" / f"{FSH}.stm"
    stm.parent.mkdir(parents=True)
    stm.write_text(
        ';; LABEL "O" "Overall" ""\n;; LABEL "FSH" "Fisher" ""\n'
        f"{FSH} 1 inter_segment_gap 0.00 1.00 <O,FSH>\n"
        f"{FSH} 1 {FSH}_A 1.00 2.00 <O,FSH> hello again\n"
        f"{FSH} 2 {FSH}_B 2.00 3.00 <O,FSH> hello\n"
    )
    rules = data / "trans_rules"
    rules.mkdir()
    (rules / "en20030506.glm").write_text(glm_text())
