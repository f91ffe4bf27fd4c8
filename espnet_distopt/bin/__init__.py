"""Command-line entry points; each module has `get_parser()` and `main()`.

`distopt` runs the others by their names. Only `machine_checks` and
`simulate_arguments` are no commands: they hold what a command has no room for.
"""

WINGS = ("espnet_distopt.bin", "espnet_distopt.recipes.commands")
"""The folders of commands. Each has COMMANDS, whose entries are names or `module:name`,
and `machine_checks.SECTIONS`, which `doctor` shows. Their names are all that trainers
know of other wings."""

COMMANDS = {
    "begin": ("doctor", "calibrate", "simulate"),
    "train": ("launch", "slurm", "asr_train", "espnet_train", "lm_train"),
    "watch": ("status",),
}
"""The commands in the order of the help: what they are for -> their names."""
