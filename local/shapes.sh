# shellcheck shell=bash
# What ESPnet's statistics leave to the recipe. Source me.

# with_vocabulary DIRECTORY TYPE TOKENS: DIRECTORY/{train,valid}/text_shape.TYPE from
# text_shape, each length followed by the number of tokens, as batching by size needs.
with_vocabulary() {
    local size part shape
    size=$(wc -l <"$3")
    for part in train valid; do
        shape=$1/$part/text_shape
        awk -v n="$((size))" '{ print $0 "," n }' "$shape" >"$shape.$2.tmp"
        mv "$shape.$2"{.tmp,}
    done
}
