"""Turns the arguments of `bin.simulate` into its methods and its trial."""

import argparse
import dataclasses
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from espnet_distopt.algorithms import lookup
from espnet_distopt.algorithms.options import algorithm_options
from espnet_distopt.errors import InputError
from espnet_distopt.files.yaml import read_yaml
from espnet_distopt.simulation.cluster_file import Cluster, StepTime, read_cluster
from espnet_distopt.simulation.compute import Compute, read_trace
from espnet_distopt.simulation.faults import Fault
from espnet_distopt.simulation.network import Link, Network
from espnet_distopt.simulation.study.outcome import SimulatedMethod
from espnet_distopt.simulation.study.problem import (
    TENSORS,
    Problem,
    Quadratic,
    TimeOnly,
    without_steps,
)
from espnet_distopt.simulation.study.trial import Trial

DEFAULT_ALGORITHMS = ["allreduce", "adpsgd"]

NETWORK_DEFAULTS = {
    "latency": 1e-4,
    "bandwidth": 1.25e9,
    "per_node": 1,
    "inside_latency": 1e-5,
    "inside_bandwidth": 2e10,
}


def methods_of(args: argparse.Namespace) -> list[SimulatedMethod]:
    """Return the methods to compare, each under a name of its own.

    Raises:
        InputError: An algorithm or an option does not exist, or two methods have the
            same name.
    """
    algorithms = args.algorithm or ([] if args.distopt_config else DEFAULT_ALGORITHMS)
    options = dict(_key_value(option) for option in args.option)
    known = {name: _known_options(name) for name in algorithms}
    all_known = {key for keys in known.values() for key in keys}
    for key in options.keys() - all_known:
        raise InputError(
            f"--option {key}: none of --algorithm knows it; they know: "
            f"{', '.join(sorted(all_known)) or 'none'}"
        )
    methods = [_method_of(path) for path in args.distopt_config]
    topologies = _topologies(algorithms, args.topology, options)
    for name, keys in known.items():
        chosen = {key: value for key, value in options.items() if key in keys}
        if not topologies[name]:
            methods.append(SimulatedMethod(name=name, algorithm=name, options=chosen))
        for topology in topologies[name]:
            on = SimulatedMethod(
                name=f"{name}, {topology}",
                algorithm=name,
                options=chosen | {"topology": topology},
            )
            methods.append(on)
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"two methods are called '{name}': leave out of --algorithm what a "
                "file of --distopt_config names, or rename the file"
            )
    return methods


def _topologies(
    algorithms: Sequence[str], asked: Sequence[str], options: dict[str, Any]
) -> dict[str, list[str]]:
    """Return algorithm -> those of the topologies of --topology that it knows.

    Raises:
        InputError: no algorithm knows one of them, or --option names one as well.
    """
    if asked and "topology" in options:
        raise InputError("--option topology: --topology says that already")
    known = {name: _known_topologies(name) for name in algorithms}
    everything = dict.fromkeys(topology for own in known.values() for topology in own)
    for topology in asked:
        if topology not in everything:
            raise InputError(
                f"--topology {topology}: none of --algorithm knows it; they know: "
                f"{', '.join(everything) or 'none'}"
            )
    wanted = dict.fromkeys(asked)
    return {name: [t for t in wanted if t in own] for name, own in known.items()}


def _known_topologies(name: str) -> list[str]:
    """Return the values of an algorithm's option `topology`; none if it has none."""
    hint = get_type_hints(lookup(name).config).get("topology")
    options = [*get_args(hint), *(x for part in get_args(hint) for x in get_args(part))]
    return [option for option in options if isinstance(option, str)]


def _key_value(option: str) -> tuple[str, Any]:
    key, equals, value = option.partition("=")
    try:
        if key and equals:
            return key, yaml.safe_load(value)
    except yaml.YAMLError:
        pass
    raise InputError(f"--option {option}: expected KEY=VALUE, as period=8")


def _known_options(name: str) -> list[str]:
    return [option.name for option in dataclasses.fields(lookup(name).config)]


def _method_of(path: Path) -> SimulatedMethod:
    config = read_yaml(path)
    if "distopt" not in config:
        raise InputError(f"{path}: has no `distopt: ALGORITHM`")
    options = config.get("distopt_conf") or {}
    if not isinstance(options, dict):
        raise InputError(f"{path}: distopt_conf must be `option: value` lines")
    algorithm = str(config["distopt"])
    lookup(algorithm)
    options = algorithm_options(options)
    return SimulatedMethod(name=path.stem, algorithm=algorithm, options=options)


def trial_of(
    args: argparse.Namespace, methods: Sequence[SimulatedMethod] = ()
) -> Trial:
    """Return what all methods have in common.

    Raises:
        InputError: An argument is impossible, or a file cannot be read.
    """
    if args.seed < 0:
        raise InputError(f"--seed must be >= 0, not {args.seed}")
    optimizer = _optimizer(args)
    cluster = _cluster(args)
    times = (cluster.step, args.step_seconds, args.trace)
    if args.advise and all(given is None for given in times):
        raise InputError(
            "--advise needs the time of a step: give --step_seconds, --trace, or a "
            "cluster file with `step`, which `distopt calibrate --exp` measures"
        )
    samples = args.batch_size / max(*args.learners, 1)
    problem = _problem(args, methods)
    return Trial(
        problem=problem,
        optimizer=optimizer,
        batch_size=args.batch_size,
        samples=problem.samples if args.samples is None else args.samples,
        epochs=args.epochs,
        compute=_compute(args, cluster.step or StepTime(fixed=0.3), samples),
        compute_learners=max(args.learners),
        fixed_seconds=cluster.step.fixed if cluster.step else 0.0,
        network=cluster.network,
        model_bytes=args.model_bytes,
        faults=_faults(args.fault),
        seed=args.seed,
    )


def _optimizer(args: argparse.Namespace) -> Callable[[nn.Module], Optimizer]:
    if not args.lr > 0:
        raise InputError(f"--lr must be > 0, not {args.lr}")
    if not 0 <= args.momentum < 1:
        raise InputError(f"--momentum must be in [0, 1), not {args.momentum}")
    adam = (args.optim or ("adam" if args.advise else "sgd")) == "adam"
    if adam and args.momentum:
        raise InputError("--momentum belongs to --optim sgd")
    kind: type[Adam | SGD] = Adam if adam else SGD
    options = {} if adam else {"momentum": args.momentum}
    if args.time_only:
        kind = without_steps(kind)
    return lambda model: kind(model.parameters(), lr=args.lr, **options)


def _problem(args: argparse.Namespace, methods: Sequence[SimulatedMethod]) -> Problem:
    if args.time_only:
        return _time_only(args, methods)
    if args.config is not None:
        read_yaml(args.config)  # of a bad file ESPnet's parser makes a traceback
        try:
            further = shlex.split(args.train_args or "")
        except ValueError as error:
            raise InputError(f"--train_args: {error}: {args.train_args}") from None
        from espnet_distopt.espnet.training.simulated import EspnetProblem

        arguments = ["--config", str(args.config), *further]
        try:
            return EspnetProblem(arguments, seed=args.seed)
        except FileNotFoundError as error:
            raise InputError(
                f"{args.config} names {error.filename}, which is not there (in "
                f"{Path.cwd()}): start this where the training is started"
            ) from None
    if args.train_args is not None:
        raise InputError("--train_args belongs to --config")
    return Quadratic(
        dimension=args.dimension,
        condition=args.condition,
        noise=args.noise,
        seed=args.seed,
    )


def _time_only(args: argparse.Namespace, methods: Sequence[SimulatedMethod]) -> Problem:
    if args.config is not None:
        raise InputError("--time_only learns nothing: leave out --config")
    if args.model_bytes is None:
        raise InputError(
            "--time_only and --advise need --model_bytes, the size of the model"
        )
    fragments = [method.options.get("fragments", 1) for method in methods]
    return TimeOnly(
        tensors=max([TENSORS, *(n for n in fragments if isinstance(n, int))])
    )


def _compute(args: argparse.Namespace, step: StepTime, samples: float) -> Compute:
    """Return how long a step on a batch of `samples` takes."""
    given = args.step_seconds
    return Compute(
        seconds=step.of(samples) if given is None else given,
        spread=args.spread,
        trace=read_trace(args.trace) if args.trace else (),
        slowdown=_by_rank("straggler", args.straggler),
        seed=args.seed,
    )


def _by_rank(name: str, pairs: Sequence[str]) -> dict[int, float]:
    values: dict[int, float] = {}
    for pair in pairs:
        rank, _, value = pair.partition(":")
        try:
            key, number = int(rank), float(value)
        except ValueError:
            key, number = -1, -1.0
        if key < 0 or not number >= 0:
            raise InputError(
                f"--{name} {pair}: expected RANK:NUMBER, none below 0, as 3:10"
            )
        if key in values:
            raise InputError(f"--{name}: learner {key} is given twice")
        values[key] = number
    return values


def _faults(texts: Sequence[str]) -> list[Fault]:
    try:
        return [Fault.parse(text) for text in texts]
    except InputError as error:
        raise InputError(f"--fault {error}") from None


def _cluster(args: argparse.Namespace) -> Cluster:
    """Return the cluster of --cluster, or the one that the other options describe."""
    if args.cluster is None:
        return Cluster(network=_network(args))
    cluster = read_cluster(args.cluster)
    twice = [*NETWORK_DEFAULTS, *(["step_seconds"] if cluster.step else [])]
    for name in twice:
        if getattr(args, name) is not None:
            raise InputError(f"--{name}: {args.cluster} says that already")
    network = replace(cluster.network, loss=args.loss, seed=args.seed)
    return replace(cluster, network=network)


def _network(args: argparse.Namespace) -> Network:
    given = {name: getattr(args, name) for name in NETWORK_DEFAULTS}
    figures = {**NETWORK_DEFAULTS, **{k: v for k, v in given.items() if v is not None}}
    return Network(
        inside=Link(
            latency=figures["inside_latency"], bandwidth=figures["inside_bandwidth"]
        ),
        between=Link(latency=figures["latency"], bandwidth=figures["bandwidth"]),
        per_node=int(figures["per_node"]),
        loss=args.loss,
        seed=args.seed,
    )
