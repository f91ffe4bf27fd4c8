"""A training by adpsgd over a work queue, whose learners are killed and join again.

usage: joiner.py DIR [DEATH...] [--algorithm NAME] [--hang] [--heartbeat SECONDS]

A DEATH is RANK:EPOCH:ITEM or RANK:EPOCH:end: the first process of that learner kills
itself by SIGKILL when it has trained on so many items of the epoch, or at its end; with
RANK:EPOCH:consensus it does so in the consensus after the epoch, and with
RANK:start:group before the process group is made. With --hang the first
replacement of a learner never begins its session. With --next the others train on in
the epoch of the death until a replacement has asked them, and wait for it in the next
one. With --validation the others wait for so many seconds after the epoch of the death,
once a replacement has asked. Otherwise they train on without taking items before a
replacement has exchanged with one of them, so that it finds an epoch under way; with
`end` they wait only in the epoch before the last one, and only until it has begun.

Each process writes DIR/RANK.INCARNATION.json: what it has seen, epoch by epoch.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from espnet_distopt import Session, WorkQueue
from espnet_distopt.algorithms.lifecycle import Joining

ITEMS, EPOCHS = 120, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("deaths", nargs="*")
    parser.add_argument("--algorithm", default="adpsgd")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--repeat", action="store_true")
    parser.add_argument("--next", action="store_true")
    parser.add_argument("--validation", type=float, default=0)
    parser.add_argument("--heartbeat", type=float, default=10)
    args = parser.parse_args()
    first = os.environ["DISTOPT_INCARNATION"] == "0"
    if first and f"{os.environ['RANK']}:start:group" in args.deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (str(rank), str(size)) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
    incarnation = int(os.environ["DISTOPT_INCARNATION"])
    while args.hang and incarnation == 1:
        time.sleep(1)
    deaths = {tuple(death.split(":")) for death in args.deaths}
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    seen: dict[str, Any] = {"items": [], "bits": [], "exchanges": [], "states": 0}
    file = args.directory / f"{rank}.{incarnation}.json"

    def write() -> None:
        new = args.directory / f"new.{rank}"
        new.write_text(json.dumps(seen))
        new.rename(file)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()

    def counted(joining: Joining) -> dict[str, Any]:
        seen["states"] += 1
        return state(joining)

    state, Joining.state = Joining.state, counted  # type: ignore[method-assign]
    (args.directory / f"{rank}.{incarnation}.asks").touch()
    with Session(
        model,
        optimizer,
        args.algorithm,
        heartbeat_seconds=args.heartbeat,
        repeat_begun=args.repeat,
    ) as session:
        session.resume(args.directory / "run", schedule=schedule)
        seen["first_epoch"] = session.first_epoch
        seen["schedule"] = schedule.last_epoch
        seen["moments"] = len(optimizer.state)
        seen["steps"] = session.learner.steps
        write()
        exchanges = 0.0
        for epoch in range(session.first_epoch, EPOCHS):
            queue = WorkQueue(session, ITEMS)
            seen["items"].append([])
            for item in queue.read(lambda numbers: numbers):
                seen["items"][-1].append(item)
                write()
                step()
                done = str(len(seen["items"][-1]))
                if incarnation == 0 and (str(rank), str(epoch), done) in deaths:
                    os.kill(os.getpid(), signal.SIGKILL)
                session.step()
                here = epoch == session.first_epoch and "end" not in str(deaths)
                while incarnation and here and not exchanges:
                    time.sleep(0.01)
                    step()
                    session.step()
                    exchanges += session.metrics()["exchanges"]
                    if exchanges:
                        (args.directory / f"{rank}.exchanged").touch()
                while awaits(args, epoch, rank, queue):
                    step()
                    session.step()
            if incarnation == 0 and (str(rank), str(epoch), "end") in deaths:
                os.kill(os.getpid(), signal.SIGKILL)
            with session.consensus():
                if first and f"{rank}:{epoch}:consensus" in args.deaths:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen["bits"].append(session.learner.params.tolist())
                session.save()
            schedule.step()
            validate(args, epoch, rank)
            exchanges += session.metrics()["exchanges"]
            seen["exchanges"].append(exchanges)
            exchanges = 0.0
            write()
    seen["ended"] = True
    write()


def awaits(args: argparse.Namespace, epoch: int, rank: int, queue: WorkQueue) -> bool:
    """Return whether a replacement is to join this epoch, and has not."""
    time.sleep(0.01)
    for death in args.deaths:
        victim, when, how = death.split(":")
        if how == "end" and epoch == EPOCHS - 2 and queue.started > ITEMS // 2:
            return not (args.directory / f"{victim}.1.json").exists()
        others = how.isdecimal() and int(victim) != rank
        if args.next and others and int(when) == epoch:
            return queue.started > ITEMS // 2 and not has_asked(args, victim)
        expected = others and int(when) + int(args.next) == epoch
        if expected and queue.started > ITEMS // 2:
            return not (args.directory / f"{victim}.exchanged").exists()
    return False


def has_asked(args: argparse.Namespace, victim: str, seconds: float = 5) -> bool:
    """Return whether a replacement has begun to join some seconds ago."""
    asks = args.directory / f"{victim}.1.asks"
    return asks.exists() and time.time() - asks.stat().st_mtime > seconds


def validate(args: argparse.Namespace, epoch: int, rank: int) -> None:
    """Wait with --validation, after the epoch of the death of another one."""
    victim, when, _ = args.deaths[0].split(":") if args.validation else ("", "", "")
    if when == str(epoch) and victim != str(rank):
        while not has_asked(args, victim, args.validation):
            time.sleep(0.1)


main()
