"""Passes over flat tensors, a piece at a time."""

import pytest
import torch

from espnet_distopt.core.cache_blocks import PIECE, cache_blocks, room_for_piece


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_every_element_is_touched_once(size: int) -> None:
    counts, ones = torch.zeros(size), torch.ones(size)
    for count, one in cache_blocks(counts, ones):
        assert len(count) <= PIECE
        count.add_(one)
    assert torch.equal(counts, ones)


def test_tensors_of_unequal_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        for _ in cache_blocks(torch.zeros(PIECE + 1), torch.zeros(3)):
            pass


@pytest.mark.parametrize("size", [0, 7, PIECE, 3 * PIECE + 7])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_every_piece_has_room(size: int, dtype: torch.dtype | None) -> None:
    tensor = torch.zeros(size)
    room = room_for_piece(tensor, dtype)
    assert room.dtype == (dtype or tensor.dtype)
    assert len(room) == max(
        (len(piece) for (piece,) in cache_blocks(tensor)), default=0
    )
