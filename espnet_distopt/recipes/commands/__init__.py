"""The commands of the recipes; each module has `get_parser()` and `main()`.

`distopt` runs them by their names. Only `machine_checks`, `options`, `progress` and
`report_page` are no commands: they hold what several commands share, or what one has
no room for.
"""

COMMANDS = {
    "begin": ("recipe",),
    "train": ("ocr_train", "hybrid_train", "check"),
    "watch": ("report",),
    "decode and score": (
        "asr_inference",
        "ctc_inference",
        "ocr_inference",
        "hybrid_inference",
        "hybrid_scores",
        "ctc_align",
        "score",
        "score_hub5",
        "score_lines",
        "error_sheet",
        "wer_report",
    ),
    "prepare data": (
        "prepare_swbd",
        "prepare_fsdd",
        "prepare_iam",
        "prepare_lines",
        "make_mini_swbd",
        "make_mini_ocr",
        "make_tokens",
        "make_lexicon",
        "make_lang",
        "make_ngram",
        "make_features",
        "speech_shapes",
        "gmm_train",
        "import_alignments",
        "format_data",
        "format_lines",
    ),
}
"""The commands in the order of the help: what they are for -> their names."""
