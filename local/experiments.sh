# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # It shares variables with asr.sh.
# These functions describe the experiments of a recipe, one for each algorithm, and the ways
# to decode each of them. The script asr.sh sources this file.

# experiment ALGORITHM: set the variables of an experiment: the number of its `learners`,
# its `options`, its directory `exp`, and the `label` that the names of its jobs contain.
experiment() {
    local conf=conf/distopt/$1.yaml
    learners=$nlearners options=(--distopt "$1")
    [ ! -f "$conf" ] || options+=(--distopt_config "$conf")
    # The training configuration may name another algorithm.
    [ "$1" != none ] || learners=1 options=(--distopt none)
    label=$1_$learners${tag:+_$tag} model=$inference_asr_model
    [ "$1" != gmm ] || label=gmm model=gmm.npz
    exp=$expdir/${task}_$label
}

# ways ALGORITHM: print the configurations that decode its experiment. All decode that of
# the first algorithm, which compares them; one is enough to compare the algorithms.
ways() {
    # shellcheck disable=SC2086  # The variable is a list of files.
    set -- "$1" $decode_config
    if [ "$1" = "${distopt%% *}" ]; then echo "${@:2}"; else echo "$2"; fi
}

# searching CONFIG: set the variables of one way to decode: its `config`, the options
# `search_options` of decode.sh, and `decode_name`, the name of the directories of its
# results; end the script if it cannot be.
searching() {
    config=$1 decode_name=$(basename "$1" .yaml) search_options=()
    use_search
    if [ "$use_lm" = true ]; then
        decode_name=${decode_name%_lm}_lm
        search_options+=(--lm "$lmdir")
    fi
    [ -z "$ngram_file" ] || decode_name+=_ngram
}

# weighed KEY WHAT [DEFAULT]: end the script if the configuration `config` gives WHAT, a
# language model or an n-gram, no weight; one that it does not name is DEFAULT.
weighed() {
    local weight
    chosen 12 || return 0
    weight=$(sed -nE "s/^$1: *([^ #]+).*/\1/p" "$config")
    [[ ${weight:-${3:-}} == *[1-9]* ]] ||
        die "$config: $1 is missing or 0: say there what the $2 weighs, such as $1: 0.3"
}

# decoding SET: set `decode`, the arguments of decode.sh for the current experiment and
# the current way to decode.
decoding() {
    decode=(
        --nj "$nj" --exp "$exp" --data "dump/$1"
        --model "$model" --config "$config"
        --out "$exp/$decode_name/$1" --align_data "data/$1"
        "${decode_options[@]}" "${search_options[@]}"
    )
}
