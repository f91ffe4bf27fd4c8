"""Reads the images of lines in a dump directory, from files or from features."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from espnet_distopt.corpora.kaldi.matrix_arks import read_matrix
from espnet_distopt.corpora.kaldi.tables import read_table
from espnet_distopt.corpora.lines.images import Gray, read_image
from espnet_distopt.errors import InputError


class DumpedImages:
    """Reads one image at a time, by the id of the line."""

    def __init__(self, data: Path) -> None:
        """Read where the images are.

        Args:
            data: The directory. It has `images.scp`, or `feats.scp` with features in
                arks.

        Raises:
            InputError: It has neither, or a malformed one.
        """
        names = ("images.scp", "feats.scp")
        scp = next((data / name for name in names if (data / name).is_file()), None)
        if scp is None:
            raise InputError(f"{data}: neither images.scp nor feats.scp")
        self._scp = scp
        self._places: Mapping[str, str] = read_table(scp, str)

    def __call__(self, line: str) -> Gray:
        """Return the grey image of a line, shape (height, width).

        Raises:
            InputError: There is no such line, or its image cannot be read.
        """
        if line not in self._places:
            raise InputError(f"{self._scp}: line {line} is not in it")
        place = self._places[line]
        if self._scp.name == "images.scp":
            return read_image(Path(place))
        ink = read_matrix(place)
        return (255 - 255 * ink.T.clip(0, 1)).astype(np.uint8)
