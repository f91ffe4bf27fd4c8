"""The Hub5 2000 evaluation: LDC2002S09 (speech) and LDC2002T43 (transcripts).

It has 40 telephone conversations, 20 of Switchboard and 20 of CallHome.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from espnet_distopt.corpora.hub5.marks import mend_stm
from espnet_distopt.corpora.hub5.pem import read_pem
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
        The utterances, whose ids have the times of the STM, with the STM and the GLM.
        The PEM, which should have the same times, is only compared with it.

    Raises:
        InputError: A file is missing, or a line of the reference is bad in a way that
            the scorer does not take.
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
    references = parse_stm(mended, stm, log)
    check_labels(mended, references)
    for difference in _differences(pem, references, stm):
        log(f"warning: {difference}; the segments of {stm.name} are recognised")
    speech_set = evaluation_set("eval2000", audio, references, log)
    return Evaluation(speech_set, mended, glm)


def _differences(
    pem: Path, references: Sequence[Reference], stm: Path
) -> Iterator[str]:
    try:
        spans = read_pem(pem, lambda line: None)
    except InputError as error:
        yield str(error)
        return
    referred = [reference.span for reference in references]
    for ones, others, lacking in ((spans, referred, stm), (referred, spans, pem)):
        known = {span.utterance for span in others}
        missing = [span for span in ones if span.utterance not in known]
        if missing:
            first = missing[0]
            yield (
                f"{first.where}: utterance {first.utterance} is not in {lacking}"
                + (f", and {len(missing) - 1} more" if len(missing) > 1 else "")
            )
