"""The lines that a stock ESPnet training would have written, from its `train.log`.

The log tells the epochs, the losses and when they were written, by process 0. What it
does not tell is unknown in the lines.
"""

import re
from datetime import datetime
from pathlib import Path
from typing import Any

from espnet_distopt.monitoring.lines import Event, Line

_ROW = re.compile(
    r"\[([^\]:]*)(?::0/(\d+))?\] (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) "
    r"\(\w+:\d+\) INFO: (.*)"
)
# ESPnet leaves out some of the commas between figures.
_LOSS = r"(?<![a-z_])loss=(-?[\d.]+(?:e[-+]\d+)?|-?inf|nan)"
_STARTED = re.compile(r"(\d+)/(\d+)epoch started")
_STEPS = re.compile(rf"(\d+)epoch:train:\d+-(\d+)batch: .*?{_LOSS}")
_RESULTS = re.compile(rf"(\d+)epoch results: \[train\].*?{_LOSS}.*\[valid\].*?{_LOSS}")


def read(path: Path) -> list[Line]:
    """Return the lines of a log, in their order; none if it is not ESPnet's."""
    try:
        rows = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found: list[Line] = []
    about: dict[str, Any] = {"rank": 0, "algorithm": "none", "pid": 0}
    epoch = step = first = 0
    began = 0.0
    for row in rows:
        whole = _ROW.match(row)
        if whole is None:
            continue
        host, learners, when, text = whole.groups()
        time = datetime.strptime(when, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        more: dict[str, Any] = {}
        event: Event
        if seen := _STARTED.match(text):
            if found and int(seen[1]) > found[-1].epoch:
                epoch, step = int(seen[1]), 0
                continue
            event = "begin" if int(seen[1]) == 1 else "resume"
            epoch, step, began = int(seen[1]), 0, time
            first = epoch
            about |= {"max_epoch": int(seen[2]), "host": host}
            about["learners"] = int(learners or 1)
        elif not about.get("host"):
            continue
        elif seen := _STEPS.match(text):
            event, epoch, step = "step", int(seen[1]), int(seen[2])
            more = {"loss": float(seen[3])}
        elif seen := _RESULTS.match(text):
            event, epoch = "epoch", int(seen[1])
            each = (time - began) / (epoch - first + 1)
            more = {"epoch_loss": float(seen[2]), "valid_loss": float(seen[3])}
            more["left"] = each * (about["max_epoch"] - epoch)
        elif text.startswith("The training was finished"):
            event = "end"
        else:
            continue
        found.append(
            Line(time=time, event=event, epoch=epoch, step=step, **about, **more)
        )
    return found
