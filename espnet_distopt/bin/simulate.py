"""Train with virtual learners: how algorithms converge, and how fast they would be."""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from espnet_distopt.errors import InputError, one_line_errors
from espnet_distopt.files.writing import write_json, write_text

if TYPE_CHECKING:
    from espnet_distopt.simulation.study.outcome import Outcome, Point, SimulatedMethod
    from espnet_distopt.simulation.study.trial import Trial


def get_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = argparse.ArgumentParser(
        description="Simulate trainings of N learners in one process: the algorithms "
        "and the gradients are real, time is virtual. Prints a table; --out gets it as "
        "table.md, with results.json and plots.",
        epilog="Example: --algorithm allreduce adpsgd bmuf --learners 1 4 16 "
        "--straggler 0:10 --model_bytes 165e6 --out exp/simulated",
    )
    parser.add_argument(
        "--advise",
        action="store_true",
        help="rank algorithms by their time on --cluster (or the network options), and "
        "print the YAML of the fastest; needs --model_bytes, and nothing is learnt",
    )
    _add_training(parser.add_argument_group("training"))
    _add_problem(parser.add_argument_group("problem"))
    _add_compute(parser.add_argument_group("compute"))
    _add_network(parser.add_argument_group("network"))
    parser.add_argument(
        "--out", type=Path, help="directory to write; earlier results are replaced"
    )
    return parser


def _add_training(group: Any) -> None:
    add = group.add_argument
    add("--algorithm", nargs="+", default=[], help="default: allreduce adpsgd")
    add(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of those of --algorithm that know it (repeatable)",
    )
    add(
        "--topology",
        nargs="+",
        default=[],
        metavar="NAME",
        help="run those of --algorithm that know it on each of these",
    )
    add(
        "--distopt_config",
        nargs="+",
        default=[],
        type=Path,
        metavar="YAML",
        help="also run what these files' distopt and distopt_conf say",
    )
    add(
        "--learners",
        nargs="+",
        type=int,
        default=[16],
        metavar="N",
        help="several numbers give a speed-up curve (default 16)",
    )
    add(
        "--batch_size",
        type=int,
        default=256,
        help="samples of a step of all learners together (default 256)",
    )
    add("--samples", type=int, help="samples in an epoch (default: the problem's)")
    add(
        "--epochs",
        type=int,
        default=10,
        help="epochs; each ends with an evaluation (default 10)",
    )
    add(
        "--optim",
        choices=("sgd", "adam"),
        help="optimizer (default: sgd; adam with --advise)",
    )
    add("--lr", type=float, default=0.1, help="learning rate (default 0.1)")
    add("--momentum", type=float, default=0.0, help="momentum of sgd (default 0)")
    add("--seed", type=int, default=0, help="seed of all random numbers (default 0)")


def _add_problem(group: Any) -> None:
    group.description = "Without --config: a noisy quadratic."
    add = group.add_argument
    add(
        "--time_only",
        action="store_true",
        help="learn nothing; messages have --model_bytes, steps take their time",
    )
    add("--dimension", type=int, default=256, help="number of parameters (default 256)")
    add(
        "--condition",
        type=float,
        default=100.0,
        help="condition number: largest curvature over smallest (default 100)",
    )
    add(
        "--noise",
        type=float,
        default=1.0,
        help="standard deviation of one sample's gradient (default 1)",
    )
    add(
        "--config",
        type=Path,
        metavar="YAML",
        help="train what this configuration of an ESPnet training describes instead",
    )
    add(
        "--train_args",
        metavar="'ARGS'",
        help="what else bin.asr_train gets: token list, data paths and so on; its "
        "optimizer and its batches are not used",
    )


def _add_compute(group: Any) -> None:
    add = group.add_argument
    add(
        "--step_seconds",
        type=float,
        help="seconds of a learner's step with the most learners of --learners; with "
        "fewer, each has more samples and takes proportionally longer (default 0.3)",
    )
    add(
        "--spread",
        type=float,
        default=0.0,
        help="sigma of the log-normal factor on a step's seconds (default 0)",
    )
    add(
        "--trace",
        type=Path,
        help="draw the seconds of steps from this file of measured ones, one a line; "
        "--step_seconds and --spread then do not count",
    )
    add(
        "--straggler",
        nargs="+",
        default=[],
        metavar="RANK:FACTOR",
        help="this learner is so many times slower",
    )
    add(
        "--fault",
        nargs="+",
        default=[],
        metavar="RANK:KIND:SECOND",
        help="3:crash:20 (learner 3 dies at 20 s), 3:join:40 (a replacement joins), "
        "3:silence:20:45 (it stops for 45 s)",
    )


def _add_network(group: Any) -> None:
    group.description = "Seconds one way, and bytes a second."
    add = group.add_argument
    add(
        "--cluster",
        metavar="YAML",
        help="take links, what learners share and the time of a step from this file, "
        "or from a known cluster of this name, in place of the options that say so",
    )
    add("--latency", type=float, help="latency between nodes (default 1e-4)")
    add("--bandwidth", type=float, help="bandwidth between nodes (default 1.25e9)")
    add("--per_node", type=int, help="learners of a node (default 1)")
    add("--inside_latency", type=float, help="latency in a node (default 1e-5)")
    add("--inside_bandwidth", type=float, help="bandwidth in a node (default 2e10)")
    add(
        "--loss",
        type=float,
        default=0.0,
        help="probability that a message of a gossip is lost, and sent again "
        "(default 0)",
    )
    add(
        "--model_bytes",
        type=float,
        help="let messages take as long as those of a model of this size (default: the "
        "problem's); all grow by the same factor",
    )


@one_line_errors
def main(cmd: Sequence[str] | None = None) -> None:
    """Run all simulations, and print a table of them."""
    args = get_parser().parse_args(cmd)
    # These come late, so that --help doesn't wait for torch.
    from espnet_distopt.bin.simulate_arguments import methods_of, trial_of
    from espnet_distopt.simulation.study.report import report

    if args.advise:
        _advise(args)
        return
    methods = methods_of(args)
    trial = trial_of(args, methods)
    sizes = dict.fromkeys(args.learners)
    runs = [(method, size) for method in methods for size in sizes]
    for method, size in runs:
        trial.check(method, size)
    outcomes: list[Outcome] = []
    with _new_results(args.out) as folder:
        try:
            for run in runs:
                outcomes.append(trial.run(*run, _log(*run, args.epochs)))
        except KeyboardInterrupt:
            if not outcomes:
                raise
        text = report(trial, outcomes, sys.argv[1:] if cmd is None else cmd)
        print(f"\n{text}", end="")
        if folder is not None:
            _write(folder, text, args.seed, trial, outcomes)
    if len(outcomes) < len(runs):
        print("stopped by Ctrl-C: the table has what was complete", file=sys.stderr)
        raise SystemExit(130)


def _advise(args: argparse.Namespace) -> None:
    from espnet_distopt.bin.simulate_arguments import trial_of
    from espnet_distopt.simulation.study.advice import advice_table, advise

    given = args.algorithm, args.distopt_config, args.option, args.topology
    if any([*given, args.out, args.fault]):
        raise InputError(
            "--advise tries all algorithms, without faults, and prints a table: leave "
            "out --algorithm, --option, --topology, --distopt_config, --fault and --out"
        )
    if len(args.learners) > 1:
        raise InputError("--advise needs one number of --learners")
    args.time_only = True
    trial, (learners,) = trial_of(args), args.learners
    ranked = advise(trial, learners)
    print(advice_table(ranked, trial.samples, trial.batch_size, learners), end="")


def _log(
    method: "SimulatedMethod", learners: int, epochs: int
) -> Callable[["Point"], None]:
    epoch = 0

    def log(point: "Point") -> None:
        nonlocal epoch
        print(
            f"{method.name}, {learners} learners: epoch {epoch}/{epochs}, "
            f"{point.samples} samples, {point.seconds:.1f} s of virtual time, "
            f"held-out loss {point.loss:.5g}",
            flush=True,
        )
        epoch += 1

    return log


def _new_results(out: Path | None) -> AbstractContextManager[Path | None]:
    """Return a context whose directory becomes `out` if its body succeeds."""
    if out is None:
        return nullcontext()
    from espnet_distopt.files.whole_directory import whole_directory

    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--out needs matplotlib: pip install matplotlib")
    return whole_directory(out, marker="table.md")


def _write(
    folder: Path, text: str, seed: int, trial: "Trial", outcomes: Sequence["Outcome"]
) -> None:
    import torch

    from espnet_distopt.simulation.study.plots import plot

    results = {
        "simulated": True,
        "problem": trial.problem.describe(),
        "seed": seed,
        "torch": torch.__version__,
        "trials": [outcome.to_dict() for outcome in outcomes],
    }
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", text)
    plot(outcomes, folder)


if __name__ == "__main__":
    main()
