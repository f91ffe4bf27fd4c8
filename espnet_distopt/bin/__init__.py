"""Command-line entry points; each module has `get_parser()` and `main()`."""
