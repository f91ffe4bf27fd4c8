"""ESPnet's preprocessor, with augmentation of the line images."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from espnet_distopt.corpora.lines.augmentation import LineAugmentation

Arrays = dict[str, Any]
"""ESPnet's arrays (or texts) of an utterance by name."""


class LinePreprocessor:
    """Does what ESPnet's own preprocessor does, then changes the image at random.

    It wraps that one instead of being a choice of `--preprocessor`, so that stock
    inference reads the configuration of an experiment.
    """

    def __init__(
        self,
        stock: Callable[[str, Arrays], dict[str, NDArray[Any]]] | None,
        augmentation: LineAugmentation,
        name: str = "speech",
    ) -> None:
        """Wrap.

        Args:
            stock: ESPnet's preprocessor, or None.
            augmentation: changes an image, shape (columns, height).
            name: of the images among the arrays.
        """
        self._stock, self._augmentation, self._name = stock, augmentation, name

    def __call__(self, uid: str, data: Arrays) -> dict[str, NDArray[Any]]:
        """Preprocess an utterance."""
        if self._stock is not None:
            data = self._stock(uid, data)
        return {**data, self._name: self._augmentation(data[self._name])}
