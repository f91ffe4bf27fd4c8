"""A replacement joins the members in the place of a learner that has died.

It takes over the state of a member (`hosting`) and then enters the list of members. If
the gossip of the epoch has ended meanwhile, it does both once more in the next epoch.
"""

import socket
from collections.abc import Callable
from typing import Any

from espnet_distopt.core.driver import JoinLater
from espnet_distopt.distributed.addresses import reachable
from espnet_distopt.distributed.door import CONNECT, token_of
from espnet_distopt.distributed.farewell import LEFT
from espnet_distopt.distributed.forks import private
from espnet_distopt.distributed.hosting import LATER, LOOK, host_key
from espnet_distopt.distributed.launcher import (
    announce_hopeless,
    announce_joined,
    survival_announced,
)
from espnet_distopt.distributed.liveness import Liveness
from espnet_distopt.distributed.membership import read_members
from espnet_distopt.distributed.state_transfer import State, receive_state
from espnet_distopt.distributed.watch import Watch
from espnet_distopt.errors import PeerLostError


def enter(
    liveness: Liveness, watch: Watch, take: Callable[[dict[str, Any]], None]
) -> State:
    """Join the members, and return the state of the one that was taken over.

    Args:
        liveness: knows which learners live.
        watch: the training thread's connection to the store.
        take: takes over the entry "learner" of a member's state, at each attempt. If it
            raises `JoinLater`, this learner joins in the next epoch.

    Raises:
        PeerLostError: the others have ended, or give this learner up.
    """
    _refuse_before_begin(liveness)
    while True:
        state = _fetch(liveness, watch)
        try:
            take(state["learner"])
        except JoinLater:
            _announce(liveness)
            _await_next_epoch(liveness, watch, state["round"])
            continue
        liveness.membership.learn(state["incarnations"])
        with watch.asking("joining"):
            liveness.await_lease()
            joined = liveness.membership.join(watch.store, state["round"])
        _announce(liveness)
        if joined:
            return state


def _announce(liveness: Liveness) -> None:
    """Tell the launcher that this learner has joined, or waits for a member.

    It does not hang then, and the launcher shall not kill it. It waits as long for a
    member that makes no step as that one's validation takes.
    """
    number = liveness.membership.incarnation(liveness.rank)
    announce_joined(liveness.rank, number)


def _refuse_before_begin(liveness: Liveness) -> None:
    """Refuse to join learners that have not begun their first session.

    They never will: each has met the dead learner in the process group, or waits for it
    there.

    Raises:
        PeerLostError: no learner has begun.
    """
    if not survival_announced():
        rank = liveness.rank
        reason = f"learner {rank} has died before the learners had begun their session"
        announce_hopeless(reason)
        raise PeerLostError(f"learner {rank}: joining has failed: {reason}", reason)


def _fetch(liveness: Liveness, watch: Watch) -> State:
    """Return the state of a member, for a replacement that is about to join.

    It asks the members in the order of their ranks, its neighbours first, until one of
    them can be joined.

    Args:
        liveness: knows which learners live.
        watch: the training thread's connection to the store.

    Raises:
        PeerLostError: the run has ended, or has ended for this learner.
    """
    while True:
        watch.check("joining")
        with watch.asking("joining"):
            token, members = token_of(watch), _others(liveness)
            _refuse_if_over(liveness, members, watch)
            known = [r for r in members if watch.store.check([host_key(liveness, r)])]
            addresses = [watch.store.get(host_key(liveness, r)).decode() for r in known]
        waits = False
        for peer, address in zip(known, addresses, strict=True):
            try:
                state = _ask(liveness, watch, peer, reachable(address), token)
            except OSError as error:
                # There may be no member any more that would notice its death.
                liveness.suspect([peer], f"it does not hand over its state: {error}")
                continue
            if state is not LATER:
                return state
            waits = True
        if waits:
            _announce(liveness)
            liveness.wait_for_note(LOOK)
        liveness.pause()


def _await_next_epoch(liveness: Liveness, watch: Watch, epoch: int) -> None:
    """Wait until the gossip of an epoch is over, in which a replacement cannot join.

    Args:
        liveness: knows which learners live.
        watch: the training thread's connection to the store.
        epoch: the number of the gossip's epoch.

    Raises:
        PeerLostError: the run has ended, or has ended for this learner.
    """
    over = False
    while not over:
        watch.check("joining")
        liveness.pause()
        with watch.asking("joining"):
            _refuse_if_over(liveness, _others(liveness), watch)
            over = read_members(watch.store).over >= epoch


def _others(liveness: Liveness) -> list[int]:
    """Return the members, from this learner's next neighbour on."""
    rank, size = liveness.rank, liveness.size
    members = sorted(liveness.members.ranks, key=lambda r: (r - rank) % size)
    return [each for each in members if each != rank]


def _refuse_if_over(liveness: Liveness, members: list[int], watch: Watch) -> None:
    beats = [watch.store.get(liveness.beat_key(peer)) for peer in members]
    if any(bytes(beat) != LEFT for beat in beats):
        return
    reason = "the others have ended their training, and nobody is left to join"
    if not members:
        reason = "all learners have died, and nobody is left to join"
        announce_hopeless(reason)
    raise PeerLostError(
        f"learner {liveness.rank}: joining has failed: {reason}", reason
    )


def _ask(
    liveness: Liveness, watch: Watch, peer: int, host: tuple[str, int], token: bytes
) -> State:
    """Return the state of `peer`, however long its step takes; or `LATER`.

    Raises:
        OSError: it has ended, or is no member any more.
    """
    with private(socket.create_connection(host, CONNECT)) as asking:
        asking.sendall(token)
        asking.settimeout(LOOK)

        def check() -> None:
            watch.check("joining")
            _announce(liveness)
            if peer not in liveness.members.ranks:
                raise ConnectionError(f"learner {peer} is lost")

        return receive_state(asking, check)
