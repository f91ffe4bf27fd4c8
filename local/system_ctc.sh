# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # It shares variables with asr.sh and feats_*.sh.
# These functions are what asr.sh does differently for a CTC model over tokens. The file
# system_hybrid.sh has the same functions for a hybrid system.

# use_system: set `token_list`, `stats_made` (a file that stage 10 makes) and `systems`,
# the names of what is decoded; end the script if an option is wrong.
use_system() {
    case $token_type in
        word | char) token_dir=data/token_list/$token_type bpemodel=none ;;
        bpe) token_dir=data/token_list/bpe_unigram$nbpe bpemodel=$token_dir/bpe.model ;;
        *) die "--token_type $token_type: expected word, char or bpe" ;;
    esac
    token_list=$token_dir/tokens.txt
    statsdir=$expdir/stats_${token_dir##*/}
    lm_statsdir=$expdir/lm_stats_${token_dir##*/}
    lmdir=$expdir/lm_${token_dir##*/}
    lm_texts="data/$train_set/text${lm_train_text:+ $lm_train_text}"
    stats_made=$statsdir/valid/text_shape.$token_type
    systems=$distopt
}

# check_made: end the script if a later stage would use what an earlier one has made with
# other options. The stages of a CTC model look at that themselves.
check_made() { true; }

# make_ngram: write the n-gram of the search, if it needs one that is not the user's.
make_ngram() {
    if [ -z "$arpa" ] || [ -n "$ngram_file" ]; then return 0; fi
    tool make_ngram --text "$sentences" --order "$ngram_order" \
        "${ngram_options[@]}" --out "$arpa"
    made_of "$arpa" "$sentences"
}

# make_tokens: write the token list (stage 5), and the n-gram of the search.
make_tokens() {
    tool make_tokens --type "$token_type" --nbpe "$nbpe" \
        --text "dump/$train_set/text" --out "$token_dir"
    make_ngram
}

# model_options: set `model_options`, which the statistics and the training have in
# common.
model_options() {
    model_options=(
        --config "$train_config"
        --use_preprocessor true --bpemodel "$bpemodel" --token_type "$token_type"
        --token_list "$token_list" --non_linguistic_symbols none --cleaner none --g2p none
        --train_data_path_and_name_and_type "dump/$train_set/$dump_scp,speech,$data_type"
        --train_data_path_and_name_and_type "dump/$train_set/text,text,text"
        --valid_data_path_and_name_and_type "dump/$valid_set/$dump_scp,speech,$data_type"
        --valid_data_path_and_name_and_type "dump/$valid_set/text,text,text"
    )
}

# collecting: set `stats`, the arguments of python that collect statistics, and
# `stats_processes`, the number of processes that do so. ESPnet reads all inputs.
collecting() {
    stats_processes=1
    stats=(
        -m "$train_program" --collect_stats true --ngpu 0
        "${model_options[@]}" --output_dir "$statsdir"
        --train_shape_file "dump/$train_set/$dump_scp"
        --valid_shape_file "dump/$valid_set/$dump_scp"
    )
}

# statistics_job: set `stats` and `stats_processes`.
statistics_job() {
    model_options
    measuring
}

# statistics: collect the lengths of the utterances (stage 10).
statistics() {
    require "dump/$train_set/$dump_scp" 3
    require "dump/$valid_set/$dump_scp" 3
    require "$token_list" 5
    locally rm -rf "$statsdir"
    statistics_job
    job stats stats "$statsdir/collect_stats.log" "collecting statistics" \
        --cpus_per_task "$stats_processes" -- "$python" "${stats[@]}"
    after_collecting
    [ "$dry_run" = true ] || with_vocabulary "$statsdir" "$token_type" "$token_list"
}

# incomplete SET: succeed if `complete_set SET` still has to make something for decoding the
# set. All that a CTC model needs is there when the set is formatted.
incomplete() { false; }

# training: set `train`, the arguments of python that train the current experiment.
training() {
    feats_options
    model_options
    # shellcheck disable=SC2206  # The variable train_args is a list of options.
    train=(
        -m "$train_program"
        "${options[@]}" "${model_options[@]}" --output_dir "$exp" --resume true --ngpu "$ngpu"
        "${feats[@]}" $train_args
        --train_shape_file "$statsdir/train/speech_shape"
        --train_shape_file "$statsdir/train/text_shape.$token_type"
        --valid_shape_file "$statsdir/valid/speech_shape"
        --valid_shape_file "$statsdir/valid/text_shape.$token_type"
    )
}
