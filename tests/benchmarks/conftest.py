"""Benchmarks are commands, which import each other by their file's name."""

import sys
from pathlib import Path

COMMANDS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(COMMANDS))
