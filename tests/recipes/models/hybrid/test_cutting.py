"""The batches of chunks in an epoch, where they can be counted."""

from argparse import Namespace

import pytest

from espnet_distopt.errors import InputError
from espnet_distopt.recipes.models.hybrid.cutting import batches_of_epoch


def test_a_part_of_the_chunks_is_not_counted() -> None:
    with pytest.raises(InputError, match="needs all chunks in each"):
        batches_of_epoch(Namespace(iterator_type="chunk", num_iters_per_epoch=3), 1)
