# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # It shares variables with asr.sh and decode.sh.
# These functions are what asr.sh and decode.sh do differently for images of text lines.
# The file feats_raw.sh has the same functions for speech, and describes them.

task=ocr
train_program=espnet_distopt.recipes.commands.ocr_train
data_scp=images.scp
dump_list=utt2num_frames

# This function also sets `height`, and `least_rows`, which is empty for none, and passes
# the kind of input to decode.sh.
use_feats() {
    height=$(sed -nE 's/^input_size: *([0-9]+).*/\1/p' "$train_config")
    [ -n "$height" ] || die "$train_config: expected input_size, the height of the lines"
    least_rows=$(sed -nE 's/^line_least_rows: *([1-9][0-9]*).*/\1/p' "$train_config")
    case $line_feats in
        ark) dump_scp=feats.scp data_type=kaldi_ark ;;
        raw) dump_scp=images.scp data_type=line_image_$height${least_rows:+_$least_rows} ;;
        *) die "--line_feats $line_feats: expected ark or raw" ;;
    esac
    sentences=dump/$train_set/text
    decode_options+=(--feats_type lines)
    [ -z "$speed_perturb_factors" ] ||
        die "--speed_perturb_factors is for speech, not for lines"
}

# Without a training, train_config may be that of another model than the one that decodes,
# which ocr_inference compares the lines with. Images are scaled when they are read.
same_formatting() {
    local found file=dump/$1/line_scaling
    [ "$line_feats" = ark ] && [ "$stage" -le 11 ] && [ -f "$file" ] || return 0
    found=$(<"$file")
    [ "$found" = "$height ${least_rows:-0}" ] ||
        die "dump/$1 has lines of the height and least rows $found, and $train_config says" \
            "$height ${least_rows:-0}: run from stage 3 (--stage 3)"
}

# Where the configuration names no weight, that of ocr_inference holds.
use_search() {
    if [ "$use_lm" = true ]; then
        searches prefix_beam || die "--use_lm needs 'search: prefix_beam' in $config"
        weighed lm_weight "language model" 0.3
    fi
    if searches ngram_beam; then
        [ "$token_type" = char ] ||
            die "$config: the n-gram is over characters, not over --token_type $token_type"
        weighed lm_weight n-gram 0.3
        arpa=${ngram_file:-data/ngram/characters_$ngram_order.arpa}
        ngram_options=(--token_list "$token_list")
        search_options+=(--arpa "$arpa")
    elif [ -n "$ngram_file" ]; then
        die "--ngram_file needs 'search: ngram_beam' in $config"
    fi
}

# searches SEARCH: succeed if the configuration `config` names this search.
searches() { grep -Eq "^search: *$1( |$)" "$config"; }

formatting() {
    format=(-m espnet_distopt format_lines "data/$1" "dump/$1" --nj "$nj")
    format+=(--height "$height" --feats "$line_feats")
    [ -z "$least_rows" ] || format+=(--least_rows "$least_rows")
    [[ " $test_sets " != *" $1 "* ]] || format+=(--keep_all)
}

measuring() { collecting; }

# Stage 3 has left out the lines that are too narrow for their texts.
after_collecting() { true; }

# The features of each line are normalized already, so the model does not normalize them.
feats_options() {
    feats=(--normalize none --fold_length 800 --fold_length 150)
}

score() {
    local name=$1 decoded=$2
    shift 2
    tool score_lines --ref "dump/$name/text" --hyp "$decoded/text" \
        --utt2spk "dump/$name/utt2spk" --out "$decoded" "$@"
    tool error_sheet --data "dump/$name" --ref "dump/$name/text" \
        --hyp "$decoded/text" --out "$decoded/errors.html"
}

decode_part() {
    local more=()
    rm -rf "$out/log/output.$1" "$out"/{text,unfit,score_cer,score_wer,errors.html}
    mkdir -p "$out/log"
    [ -z "$lm" ] || more+=(--lm "$lm")
    [ -z "$arpa" ] || more+=(--ngram_file "$arpa")
    exec "$python" -m espnet_distopt ocr_inference \
        --exp "$exp" --model "$model" --data "$data" --config "$config" "${more[@]}" \
        --out "$out/log/output.$1" --job "$1" --nj "$nj"
}

# ocr_inference logs lines such as 'decoded 320 of 600 lines' from time to time.
decoded_so_far() {
    local log
    for log in "$out"/log/decode.*.log; do
        sed -nE 's/^decoded ([0-9]+) of .*/\1/p' "$log" | tail -n 1
    done | awk '{ sum += $1 } END { print sum + 0 }'
}

result() { echo "$out/log/output.$1/$2"; }

# This function also joins the lists of unfit lines, which have no text, with the reasons.
merge() {
    joined text
    results unfit | sort -k 1,1 >"$out/unfit"
    mv "$out/text"{.tmp,}
}
