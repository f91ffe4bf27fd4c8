"""Command-line entry points; each module has `get_parser()` and `main()`.

Beside them is what some of them share: `progress`, `format_options`, `corpus_options`.
"""
