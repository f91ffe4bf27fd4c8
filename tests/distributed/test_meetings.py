"""Meetings of two learners, in one process with a store of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from espnet_distopt.core.membership import Members
from espnet_distopt.core.protocols import Membership
from espnet_distopt.distributed import liveness
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.meetings import Meetings
from espnet_distopt.distributed.watch import Watch


@pytest.fixture
def store() -> Any:
    master = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.PrefixStore("test", master)


@pytest.fixture
def meetings(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Meetings]]:
    monkeypatch.setattr(liveness, "BEAT", 0.03)
    monkeypatch.setattr(liveness, "keeps_store", lambda port: False)
    both = [Liveness(store, rank, 2, silence=30) for rank in range(2)]
    yield [Meetings(Watch(one, store), store) for one in both]
    for one in both:
        one.leave()


@pytest.mark.parametrize(("closes", "can_join"), [(0, True), (3, False)])
def test_nobody_joins_an_epoch_whose_end_all_have_met_at(
    store: Any, meetings: list[Meetings], closes: int, can_join: bool
) -> None:
    with ThreadPoolExecutor() as threads:
        ends = threads.map(lambda m: m.meet("end", "a test", closes=closes), meetings)
        assert list(ends) == [Members.everybody(2)] * 2
    replacement = Membership(store, 1, 2, incarnation=1)
    assert replacement.join(store, 3) == can_join
