"""The methods that are compared: changes of the training, and searches."""

from dataclasses import dataclass
from pathlib import Path

SEEDS = (0, 1, 2)
CONFIG = Path(__file__).parent / "train.yaml"
"""The configuration of all trainings."""


@dataclass(frozen=True)
class Method:
    """A way to train and to decode.

    Attributes:
        name: the name in the table.
        options: the options of the training in addition to `CONFIG`.
        least_rows: the rows to which lower images are padded; 0 for none.
        search: the search that decodes.
    """

    name: str
    options: tuple[str, ...] = ()
    least_rows: int = 0
    search: str = "greedy"


SHORTCUT = (
    *("--encoder_conf", "shortcut=true"),
    *("--model_conf", "interctc_weight=0.1"),
)
MAX = ("--encoder_conf", "columns=max")
HIGHEST = 56
"""The rows of the highest image of mini_ocr; the lowest ones have half as many."""

METHODS = (
    Method("reference"),
    Method("shortcut", SHORTCUT),
    Method("padding", least_rows=HIGHEST),
    Method("column maxima", MAX),
    Method("prefix beam", search="prefix_beam"),
    Method("prefix beam and n-gram", search="ngram_beam"),
)
"""The first is what the others are compared with."""

SCALES = {
    "greedy": ((0.0, 0.0),),
    "prefix_beam": ((0.0, 0.0),),
    "ngram_beam": ((0.2, 0.0), (0.2, 0.5), (0.4, 0.5), (0.4, 1.0), (0.6, 1.0)),
}
"""Search -> the pairs of `lm_weight` and `penalty` that are tried on the dev set."""

ORDER = 6
"""The order of the n-gram over the characters of the training text."""
