"""The benchmark predicts how long H200s would train IBM's network on 2,000 hours.

A learner's step is that of captured steps as results/gpu.json has it. All learners
together have 8,192 chunks in a step, as in IBM's papers, and each of a few has 1,024.
The hours of 16 epochs are simulated in time alone, for nodes whose GPUs have a port of
400 Gbit/s each and for nodes that share one card of 100 Gbit/s. Loading of data is not
in them, nor what an algorithm computes.

    python benchmarks/gpu_hours.py          # five minutes; one core
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ibm_hours import EACH_STEP, Row, hours
from report import write_report

from espnet_distopt.simulation.cluster_file import read_cluster
from espnet_distopt.simulation.network import Link, Network

LEARNERS = (1, 2, 8, 16, 64)
TOTAL, MOST = 8192, 1024
METHODS: dict[str, tuple[str, dict[str, Any], int]] = {
    "allreduce": ("allreduce", {}, 32),
    "dpsgd": ("dpsgd", {}, 32),
    "d1d_model": ("d1d_model", {}, 32),
    "d1d_grad": ("d1d_grad", {}, 32),
    "adpsgd": ("adpsgd", {}, 64),
    "adpsgd, an exchange a step": ("adpsgd", EACH_STEP, 32),
    "hadpsgd": ("hadpsgd", {"per_node": 8}, 64),
    "local_sgd": ("local_sgd", {}, 64),
    "bmuf": ("bmuf", {}, 64),
    "bmuf_adam": ("bmuf_adam", {}, 64),
    "slowmo": ("slowmo", {}, 64),
    "diloco": ("diloco", {}, 1000),
    "adasum, period 8": ("adasum", {"period": 8}, 64),
}
"""How the table calls it -> the algorithm, its options, and the steps simulated."""


def networks() -> dict[str, Network]:
    """Return the two networks between nodes."""
    fast = read_cluster("h200").network
    rate = 100e9 / 8
    link = Link(latency=fast.between.latency, bandwidth=rate)
    return {
        "400 Gbit/s a GPU": fast,
        "100 Gbit/s a node": replace(fast, card=rate, between=link),
    }


def main() -> None:
    """Simulate, and write the table to benchmarks/results/."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step = read_cluster("h200").step
    assert step is not None
    table, data = list[str](), list[dict[str, Any]]()
    for name, network in networks().items():
        table += ["", f"Nodes of eight GPUs with {name}:", ""]
        heads = [f"{learners} GPUs" for learners in LEARNERS[1:]]
        table.append(f"| algorithm | 1 GPU | {' | '.join(heads)} |")
        table.append("| :-- |" + " --: |" * len(LEARNERS))
        for label, (algorithm, options, steps) in METHODS.items():
            cells = []
            for learners in LEARNERS:
                row = Row(
                    kind=name,
                    learners=learners,
                    batch=min(MOST, TOTAL // learners),
                    hours=0.0,
                    algorithm=algorithm,
                    options=options,
                )
                few = algorithm == "hadpsgd" and 1 < learners < 8
                found = None if few else hours(row, step, network, steps)
                cells.append("" if found is None else f"{found:.2f} h")
                data.append(
                    {"network": name, "method": label, "learners": learners}
                    | {"batch": row.batch, "hours": found}
                )
            table.append(f"| {label} | {' | '.join(cells)} |")
            print(table[-1], flush=True)
    caption = (
        f"Simulated in time alone: 16 epochs of 2,000 h, {TOTAL:,} chunks of 21 frames "
        f"in a step of all learners, at most {MOST:,} of one; a step takes "
        f"{1e3 * step.fixed:.1f} ms and {1e3 * step.sample:.4f} ms a chunk "
        "(log-normal, sigma 0.1), a message 165 MB. Without the loading of data, and "
        "without what an algorithm computes."
    )
    write_report(
        "gpu_hours", False, args.out, table, caption, data, seeds=[0], repeats=1
    )


if __name__ == "__main__":
    main()
