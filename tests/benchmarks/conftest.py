"""Benchmarks are commands, which import each other by their file's name."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
