"""The module adds the augmentation of line images to ESPnet's preprocessor."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from espnet_distopt.corpora.lines.augmentation import LineAugmentation
from espnet_distopt.corpora.lines.images import least_columns

Arrays = dict[str, Any]
"""ESPnet's arrays and texts of an utterance, by name."""


class LinePreprocessor:
    """A preprocessor that runs ESPnet's own and then changes the image at random.

    It wraps ESPnet's preprocessor instead of being a choice of `--preprocessor`, so
    that ESPnet's own inference can read the configuration of an experiment.
    """

    def __init__(
        self,
        stock: Callable[[str, Arrays], dict[str, NDArray[Any]]] | None,
        augmentation: LineAugmentation,
        name: str = "speech",
    ) -> None:
        """Wrap ESPnet's preprocessor.

        Args:
            stock: ESPnet's preprocessor, or None if there is none.
            augmentation: a random change of an image of shape (columns, height).
            name: the name of the images among ESPnet's arrays.
        """
        self._stock, self._augmentation, self._name = stock, augmentation, name

    def __call__(self, uid: str, data: Arrays) -> dict[str, NDArray[Any]]:
        """Return the arrays of one line, with its image augmented.

        The image stays as wide as CTC needs it for the text.
        """
        if self._stock is not None:
            data = self._stock(uid, data)
        least = least_columns(data["text"].tolist())
        return {**data, self._name: self._augmentation(data[self._name], least)}
