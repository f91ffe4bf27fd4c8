"""The commands of the recipes, which `distopt` runs by their names.

Those of one subject are in one module: the command `score` is `score_command` there. A
command with a module of its own is `main` in it.
"""

COMMANDS = {
    "begin": ("recipe",),
    "train": ("ocr_train", "hybrid_train", "check"),
    "watch": ("report",),
    "decode and score": (
        "asr_inference",
        "decoding:ctc_inference",
        "decoding:ocr_inference",
        "decoding:hybrid_inference",
        "decoding:hybrid_scores",
        "decoding:ctc_align",
        "scoring:score",
        "scoring:score_hub5",
        "scoring:score_lines",
        "scoring:error_sheet",
        "scoring:wer_report",
    ),
    "prepare data": (
        "preparing:prepare_swbd",
        "preparing:prepare_fsdd",
        "preparing:prepare_iam",
        "preparing:prepare_lines",
        "preparing:make_mini_swbd",
        "preparing:make_mini_ocr",
        "formatting:make_tokens",
        "language:make_lexicon",
        "language:make_lang",
        "language:make_ngram",
        "formatting:make_features",
        "formatting:speech_shapes",
        "language:gmm_train",
        "language:import_alignments",
        "formatting:format_data",
        "formatting:format_lines",
    ),
}
"""What commands are for -> their names, behind that of a module that holds several."""
