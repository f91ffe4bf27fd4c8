#!/usr/bin/env bash
# This recipe recognizes the lines of your own pages: PAGES=/path is a folder of images with
# PAGE XML; docs/ocr.md says more. `./run.sh --help` lists the options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

exec ../../../local/asr.sh \
    --feats_type lines --token_type char --ngram_order 6 \
    --train_set train --valid_set dev --test_sets test \
    --distopt bmuf_adam \
    --title "pages: lines of your own pages" \
    --command "./run.sh${*:+ ${*@Q}}" \
    "$@"
