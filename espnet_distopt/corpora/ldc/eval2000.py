"""The Hub5 2000 evaluation: LDC2002S09 (speech) and LDC2002T43 (transcripts).

It has 40 telephone conversations, 20 of Switchboard and 20 of CallHome.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from espnet_distopt.corpora.hub5.glm import check_glm
from espnet_distopt.corpora.hub5.marks import mend_stm
from espnet_distopt.corpora.hub5.pem import Span, read_pem
from espnet_distopt.corpora.hub5.stm import Reference, check_labels, parse_stm
from espnet_distopt.corpora.ldc.discs import find_file, find_files, name_recordings
from espnet_distopt.corpora.ldc.evaluation import Evaluation, evaluation_set
from espnet_distopt.errors import InputError
from espnet_distopt.files.text import read_text

CONVERSATIONS = 40
"""The number of conversations on the disc."""


def read_eval2000(
    speech: Path, text: Path, log: Callable[[str], None] = print
) -> Evaluation:
    """Read the evaluation set.

    Args:
        speech: The directory that has `*.sph` and `hub5e_00.pem` below it.
        text: The directory that has `hub5e00*.stm` and `*hub5.glm` below it.
        log: Called with a line for each difference from the published discs.

    Returns:
        The utterances, whose ids have the times of the PEM, with the STM and the GLM.

    Raises:
        InputError: A file is missing or a line is bad, PEM and STM differ in their
            utterances, or an utterance lies outside its recording.
    """
    pem = find_file(speech, r"hub5e_00\.pem", "segmentation")
    stm = find_file(text, r"hub5e00.*\.stm", "reference")
    glm = find_file(text, r".*hub5\.glm", "mapping rules")
    audio = name_recordings(find_files(speech, r"(sw|en)_\d{4}\.sph"))
    if len(audio) != CONVERSATIONS:
        log(
            f"warning: {speech}: {len(audio)} conversations, the published set has "
            f"{CONVERSATIONS}"
        )
    mended = mend_stm(read_text(stm))
    references = parse_stm(mended, stm)
    check_labels(mended, references)
    _check_same(read_pem(pem), pem, references, stm)
    check_glm(glm, log)
    return Evaluation(evaluation_set("eval2000", audio, references), mended, glm)


def _check_same(
    spans: Sequence[Span], pem: Path, references: Sequence[Reference], stm: Path
) -> None:
    referred = [reference.span for reference in references]
    for ones, others, lacking in ((spans, referred, stm), (referred, spans, pem)):
        known = {span.utterance for span in others}
        for span in ones:
            if span.utterance not in known:
                raise InputError(
                    f"{span.where}: utterance {span.utterance} is not in {lacking}; "
                    "the two must list the same"
                )
