"""Batch iterators that begin at a later batch."""

from collections.abc import Iterator

from espnet_distopt.espnet.training.loading import without_first


def test_skipped_batches_are_read_before_the_random_numbers_are_restored() -> None:
    """ESPnet's multiple_iterator is a generator, whose data loaders draw numbers."""
    read: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(5):
            read.append(number)
            yield number

    rest = iter(without_first(batches(), 3))
    assert read == [0, 1, 2]
    assert list(rest) == [3, 4]
    assert list(without_first(batches(), 7)) == []
