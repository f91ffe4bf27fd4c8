"""The command prints the page with the table of what works and what is refused.

python -m tests.uses.table > docs/what_works.md
"""

from tests.uses import models, optimizers, parameters, schedules, steps
from tests.uses.use import COLUMNS, Use, rows_of

SECTIONS: dict[str, list[type[Use]]] = {
    "Parameters and buffers": rows_of(parameters),
    "The step": rows_of(steps),
    "Optimizers": rows_of(optimizers),
    "Schedulers": rows_of(schedules),
    "Models and sessions": rows_of(models),
}

ROWS = [row for rows in SECTIONS.values() for row in rows]

HEAD = """\
# What works with a session

Each row is something that users do with a model, an optimizer and a
[loop of their own](../README.md#in-a-loop-of-your-own).

- **yes**: it works with every algorithm as it does without a session. Two learners have
  trained like this, as two processes, and what they did agrees with the algorithm's
  equations: no update is lost, none is counted twice, and gradients are the mean of all
  samples. One learner alone gets the bits of the plain loop.
- **no**: the session refuses it with an `InputError` that says what to do instead. It
  never trains something else.
- **not with** or **only with** some algorithms: the others do the opposite.

`tests/uses` runs each row with each algorithm, and
`python -m tests.uses.table > docs/what_works.md` writes this page. `hadpsgd` has one
node of several learners here; with one learner on each node it is `adpsgd`. All
algorithms have their default options; `adasum` combines updates, not gradients.
`adpsgd`, `hadpsgd`, `dpsgd`, `d1d_model` and the methods with blocks but `diloco`
correct the second moment of Adam, AdamW, NAdam and RAdam (`second_moment:
consistent`). Any other optimizer but SGD is named in a warning, and trained as it is.

Buffers and frozen parameters begin as learner 0 has them, with every algorithm. The
running statistics of BatchNorm are averaged at each consensus. Any other buffer that
the forward pass changes, such as a codebook or a counter, stays each learner's own, and
a checkpoint has learner 0's.
"""


def page() -> str:
    """Return the page, in Markdown."""
    parts = [HEAD]
    for title, rows in SECTIONS.items():
        head = "| what users do | works | what to know |\n|---|---|---|"
        lines = "\n".join(map(_line, rows))
        parts.append(f"## {title}\n\n{head}\n{lines}\n")
    return "\n".join(parts)


def _line(row: type[Use]) -> str:
    refused = [f"`{name}`" for name in COLUMNS if name in row.refused]
    others = [f"`{name}`" for name in COLUMNS if name not in row.refused]
    if not refused:
        answer = "yes"
    elif not others:
        answer = "no"
    elif len(refused) <= len(others):
        answer = f"not with {', '.join(refused)}"
    else:
        answer = f"only with {', '.join(others)}"
    return f"| {row.title} | {answer} | {row.note} |"


if __name__ == "__main__":
    print(page(), end="")
