"""Find out which tensors share memory, and which have their storage to themselves.

All answers are exact. In the common case, of dense tensors that lie apart, only their
bounds are compared. If bounds overlap, the addresses of all elements are compared.
"""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor


def share_memory(
    these: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Yield the names of each two tensors that share elements, at least one of `these`.

    One tensor with two names does not count as sharing elements with itself.
    """
    rows = [
        (str(tensor.device), *_bounds(tensor), name, tensor)
        for name, tensor in {**others, **these}.items()
        if tensor.numel() > 0
    ]
    open_rows: list[tuple[str, int, int, str, Tensor]] = []
    for row in sorted(rows, key=lambda r: r[:3]):
        device, start, _, name, tensor = row
        open_rows = [r for r in open_rows if r[0] == device and r[2] > start]
        for *_, earlier, first in open_rows:
            named = earlier in these or name in these
            if named and first is not tensor and _share_an_element(first, tensor):
                yield earlier, name
        open_rows.append(row)


def overlaps_itself(tensor: Tensor) -> bool:
    """Return whether two elements of `tensor` have one address, as after `expand`."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                break
            reach += stride * (size - 1)
    else:
        return False
    return tensor.numel() > 0 and len(set(_addresses(tensor).tolist())) < tensor.numel()


def distinct(tensor: Tensor) -> Tensor:
    """Return the view of `tensor` in which each expanded dimension has the length 1.

    An expanded dimension is one of stride 0, whose elements are all the same.
    """
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    first = tuple(slice(1 if s == 0 and n > 1 else None) for n, s in sizes)
    return tensor[first]


def on_its_own(tensor: Tensor) -> bool:
    """Return whether `tensor` has all of its storage to itself."""
    return tensor.untyped_storage().nbytes() <= tensor.nbytes


def is_dense(tensor: Tensor) -> bool:
    """Return whether `tensor` is strided: neither sparse, nested nor quantized."""
    special = tensor.is_nested or tensor.is_quantized
    return tensor.layout == torch.strided and not special


def own_storage(tensors: Iterable[Tensor]) -> None:
    """Give a storage of its own to each of `tensors` that is part of a larger one."""
    for tensor in tensors:
        if is_dense(tensor) and not on_its_own(tensor):
            tensor.data = tensor.data.clone()


def _bounds(tensor: Tensor) -> tuple[int, int]:
    """Return the address of the first byte, and the address behind the last byte."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def _share_an_element(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors whose bounds overlap share an element.

    Tensors with elements of different sizes count as sharing.
    """
    if one.element_size() != other.element_size():
        return True
    return bool(torch.isin(_addresses(one), _addresses(other)).any())


def _addresses(tensor: Tensor) -> Tensor:
    """Return the address of each element of `tensor`, in bytes."""
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + torch.arange(size) * stride
    return places.flatten() * tensor.element_size() + tensor.data_ptr()
