# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # It shares variables with asr.sh and decode.sh.
# These functions are what asr.sh and decode.sh do differently for a hybrid system: a
# GMM-HMM labels each frame with the state of a phone (stage 10), a neural network learns
# the labels, and a search finds words in a graph of states, lexicon and n-gram. The
# files system_ctc.sh and feats_raw.sh have the same functions, and describe them.

task=hybrid
train_program=espnet_distopt.recipes.commands.hybrid_train
lang=data/lang

use_system() {
    [ "$feats_type" = raw ] || die "--system hybrid is for speech, not for lines"
    [ "$use_lm$ngram_file" = false ] ||
        die "--system hybrid has an n-gram of its own (--ngram_order):" \
            "--use_lm and --ngram_file are for --system ctc"
    gmm=$expdir/hybrid_gmm
    token_list=$lang/states.txt
    # The GMM is decoded, too, because the network has to be better.
    systems="gmm $distopt"
    if [ -n "$ali" ]; then
        gmm=$expdir/hybrid_ali token_list=$expdir/hybrid_ali/train/states.txt
        systems=
        [ "$stop_stage" -le 11 ] || die "--ali needs --stop_stage 11: the graph of these" \
            "states is Kaldi's, and hybrid_scores writes what it decodes"
        # The data of stages 3 and 10 may take hours, and they come before it is read.
        [ "$stage" -gt 10 ] ||
            { [ -f "$ali/final.mdl" ] && compgen -G "$ali/ali.*.gz" >/dev/null; } ||
            die "--ali $ali: expected a Kaldi directory with final.mdl and ali.*.gz"
    fi
    stats_made=$gmm/train/ali.scp
    decode_options+=(--system hybrid --gmm "$gmm")
}

check_made() {
    if [ -n "$ali" ]; then check_imported; else check_language; fi
}

# check_imported: end the script if stage 11 would train on the alignments of another
# directory, which an earlier stage 10 has imported.
check_imported() {
    local from=$gmm/imported_from
    if [ "$stage" -le 10 ] || [ ! -s "$from" ]; then return 0; fi
    from=$(cat "$from")
    # Of one directory there are several names.
    [ "$from" = "${ali%/}" ] || [ "$from" -ef "$ali" ] ||
        die "--ali $ali: the alignments in $gmm are those of $from:" \
            "run from stage 10 (--stage 10)"
}

# check_language: end the script if one of the stages 10 to 12 would use a lexicon or an
# n-gram that stage 5 has made with other options, or of another training set.
check_language() {
    local made=$lang/made_with digest
    [ "$stage" -gt 5 ] && [ "$stage" -le 12 ] && [ "$stop_stage" -ge 10 ] || return 0
    [ -s "$token_list" ] || return 0 # The stage says what it misses.
    grep -qsxe "--order $ngram_order" "$made" ||
        die "--ngram_order $ngram_order: the n-gram in $lang is not known to be of this" \
            "order: run stage 5 again (--stage 5 --stop_stage 5)"
    [ -f "$lexicon" ] || die "--lexicon $lexicon: no such file (in $PWD)"
    digest=$(sha256sum <"$lexicon")
    grep -qsxe "--lexicon ${digest%% *}" "$made" ||
        die "--lexicon $lexicon: not known to be the lexicon that $lang was made with:" \
            "run from stage 5 (--stage 5)"
    require_same_text 5 "$lang/lm.arpa" "$sentences"
}

make_tokens() {
    [ -z "$ali" ] || return 0
    tool make_lang --lexicon "$lexicon" --text "$sentences" \
        --order "$ngram_order" --out "$lang"
    made_of "$lang/lm.arpa" "$sentences"
}

# featuring SET: set `features`, the arguments of python that compute a set's features.
featuring() {
    features=(-m espnet_distopt make_features --data "dump/$1" --out "dump/$1/hybrid")
}

complete_set() {
    require "dump/$1/wav.scp" 3
    featuring "$1"
    job stats "features.$1" "$expdir/log/features.$1.log" "computing features of $1" -- \
        "$python" "${features[@]}"
}

# Stage 10 completes all sets, and formatting a set anew removes its features.
incomplete() {
    chosen 12 && ! chosen 10 && [ ! "dump/$1/hybrid/feats.scp" -nt "dump/$1/wav.scp" ]
}

# Features and mixtures are computed in one process.
statistics_job() { stats_processes=1; }

statistics() {
    local name
    [ -n "$ali" ] || require "$token_list" 5
    for name in "$train_set" "$valid_set" $test_sets; do require "dump/$name/wav.scp" 3; done
    # Earlier labels would not be those of the new features, if this stage were killed.
    locally rm -rf "$gmm/train" "$gmm/valid"
    for name in "$train_set" "$valid_set" $test_sets; do complete_set "$name"; done
    if [ -n "$ali" ]; then
        tool import_alignments --ali "$ali" --out "$gmm" \
            --data "train=dump/$train_set" --data "valid=dump/$valid_set"
        return
    fi
    # shellcheck disable=SC2086  # The variable is a list of options.
    job stats gmm "$expdir/log/gmm.log" "training the GMM" -- \
        "$python" -m espnet_distopt gmm_train --lang "$lang" --out "$gmm" \
        --data "train=dump/$train_set" --data "valid=dump/$valid_set" $gmm_args
}

training() {
    # shellcheck disable=SC2206  # The variable train_args is a list of options.
    train=(
        -m "$train_program"
        "${options[@]}" --config "$train_config" --output_dir "$exp" --resume true
        --ngpu "$ngpu" --use_preprocessor false --normalize none
        --token_list "$token_list" $train_args
        --train_data_path_and_name_and_type "$gmm/train/ali.scp,states,kaldi_ark"
        --train_data_path_and_name_and_type "dump/$train_set/hybrid/feats.scp,speech,kaldi_ark"
        --train_shape_file "$gmm/train/utt2num_frames"
        --valid_shape_file "$gmm/valid/utt2num_frames"
        --valid_data_path_and_name_and_type "$gmm/valid/ali.scp,states,kaldi_ark"
        --valid_data_path_and_name_and_type "dump/$valid_set/hybrid/feats.scp,speech,kaldi_ark"
    )
}

# The functions below are those of decode.sh.

decode_part() {
    local output=$out/log/output.$1 network=()
    rm -rf "$output" "$out"/{text,ctm,score_wer}
    mkdir -p "$out/log"
    [ "$exp" = "$gmm" ] || network=(--exp "$exp" --model "$model")
    exec "$python" -m espnet_distopt hybrid_inference "${network[@]}" \
        --gmm "$gmm" --lang "$lang" --data "$data" --places "$align_data" \
        --config "$config" --out "$output" --job "$1" --nj "$nj"
}

result() { echo "$out/log/output.$1/$2"; }

# Words have their times already, so the parts are only joined.
merge() {
    joined text
    # Words of equal times stay in order.
    results ctm | sort -s -k 1,1 -k 2,2 -k 3,3n >"$out/ctm"
    mv "$out/text"{.tmp,}
}
