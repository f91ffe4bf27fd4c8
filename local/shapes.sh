# shellcheck shell=bash
# This file completes the statistics that ESPnet collects. Scripts source it.

# with_vocabulary DIRECTORY TYPE TOKENS: write DIRECTORY/{train,valid}/text_shape.TYPE. It
# is text_shape with each length followed by the number of tokens in the file TOKENS,
# which batching by size needs.
with_vocabulary() {
    local size part shape
    size=$(wc -l <"$3")
    for part in train valid; do
        shape=$1/$part/text_shape
        awk -v n="$((size))" '{ print $0 "," n }' "$shape" >"$shape.$2.tmp"
        mv "$shape.$2"{.tmp,}
    done
}
