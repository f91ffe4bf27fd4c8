"""Command-line entry points; each module has `get_parser()` and `main()`.

`distopt` runs the others by their names. Only `machine_checks`, `options`, `progress`,
`report_page` and `simulate_arguments` are no commands: they hold what several commands
share, or what one has no room for.
"""
