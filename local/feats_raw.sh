# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # It shares variables with asr.sh and decode.sh.
# These functions are what asr.sh and decode.sh do differently for speech. The file
# feats_lines.sh has the same functions for text lines.

# The programs asr_train and asr_inference run; the names of experiments begin with asr.
task=asr
train_program=espnet_distopt.bin.asr_train
# This file of data/train says where the input is stored.
data_scp=wav.scp
# This file of dump/train has one line for each utterance.
dump_list=wav.scp

# use_feats: end the script if an option is wrong; set `dump_scp`, the file of dump/train
# that says where the input is stored, `data_type`, ESPnet's type of this input, and
# `sentences`, the file from which n-grams are estimated.
use_feats() {
    local factor configured
    dump_scp=wav.scp data_type=kaldi_ark
    # The formatted set may have each sentence at several speeds, so that no n-gram would
    # be seen only once.
    sentences=${speed_perturb_factors:+data/$train_set/text}
    sentences=${sentences:-dump/$train_set/text}
    configured=$(configured_fs "$train_config")
    [ "${configured:-$fs}" = "$fs" ] ||
        die "$train_config: frontend_conf: fs is $configured, but --fs is $fs: change one" \
            "of them, and the lengths of the windows with it"
    for factor in $speed_perturb_factors; do
        [[ $factor =~ ^[0-9]+(\.[0-9]+)?$ ]] ||
            die "--speed_perturb_factors: expected numbers such as 0.9, not '$factor'"
    done
}

# use_search: end the script if the configuration `config` cannot decode; add its options
# to `search_options`, and set `arpa` and `ngram_options`, the n-gram of the search and the
# options that make it, if there is one.
use_search() {
    case $(search_of "$config") in
        best_path)
            [ "$use_lm$ngram_file" = false ] ||
                die "$config: the best path uses no language model, and no n-gram"
            ;;
        words)
            [ "$use_lm" = false ] ||
                die "$config: the search of words uses an n-gram, no language model"
            arpa=${ngram_file:-data/ngram/words_$ngram_order.arpa}
            search_options+=(--arpa "$arpa")
            ;;
        '')
            [ "$use_lm" = false ] || weighed lm_weight "language model"
            [ -n "$ngram_file" ] || return 0
            "$python" -c "import kenlm" 2>/dev/null ||
                die "--ngram_file needs the Python package kenlm: pip install kenlm"
            weighed ngram_weight n-gram
            search_options+=(--ngram_file "$ngram_file")
            ;;
        *) die "$config: search: expected best_path or words" ;;
    esac
}

# configured_fs CONFIG: print the sample rate of its frontend in Hz, if it names one.
configured_fs() { sed -n 's/^ *fs: *\([0-9]*\)\(k\?\).*/\1\2/p' "$1" | sed 's/k/000/'; }

# search_of CONFIG: print `best_path` or `words` if ctc_inference decodes, or nothing if
# ESPnet's own asr_inference does.
search_of() { sed -n 's/^search: *\([^ #]*\).*/\1/p' "$1"; }

# formatting SET: set `format`, the arguments of python that format a set.
formatting() {
    format=(-m espnet_distopt format_data "data/$1" "dump/$1" --nj "$nj" --sample_rate "$fs")
    [[ " $test_sets " != *" $1 "* ]] || format+=(--keep_all)
    [ "$1" != "$train_set" ] || [ -z "$speed_perturb_factors" ] ||
        format+=(--speed_factors "$speed_perturb_factors")
}

# same_formatting SET: end the script if stage 3 has formatted a set with other options than
# those of this run.
same_formatting() {
    local found wanted factors=1 file=dump/$1/rate_and_speeds
    [ -f "$file" ] || return 0
    [ "$1" != "$train_set" ] || factors=${speed_perturb_factors:-1}
    # shellcheck disable=SC2086  # The variable is a list of numbers.
    wanted=$fs$(printf ' %g' $factors)
    found=$(<"$file")
    [ "$found" = "$wanted" ] ||
        die "dump/$1 has the sample rate and speeds $found, and --fs and" \
            "--speed_perturb_factors say $wanted: change these, or run from stage 3" \
            "(--stage 3)"
}

# measuring: set `stats` and `stats_processes`, as `collecting` does. Without statistics
# of features, lengths are enough, and no audio is read.
measuring() {
    if [ "$feats_normalize" = global_mvn ]; then collecting; else lengths; fi
}

# lengths: set `stats` and `stats_processes` to write the lengths of the utterances that are
# long enough for CTC to learn their texts.
lengths() {
    stats_processes=$nj
    # shellcheck disable=SC2206  # The variable train_args is a list of options.
    stats=(
        -m espnet_distopt speech_shapes --nj "$nj" --out "$statsdir"
        --train "dump/$train_set" --valid "dump/$valid_set"
        --token_type "$token_type" --bpemodel "$bpemodel" --token_list "$token_list"
        --model "${model_options[@]}" $train_args
    )
}

# after_collecting: replace the lengths that ESPnet has collected, of all utterances.
after_collecting() {
    [ "$feats_normalize" = global_mvn ] || return 0
    lengths
    job stats shapes "$statsdir/shapes.log" "measuring utterances" \
        --cpus_per_task "$stats_processes" -- "$python" "${stats[@]}"
}

# feats_options: set `feats`, the options that only the training has.
feats_options() {
    feats=(--normalize "$feats_normalize" --fold_length 80000 --fold_length 150)
    [ "$feats_normalize" != global_mvn ] ||
        feats+=(--normalize_conf "stats_file=$statsdir/train/feats_stats.npz")
}

# score SET DECODED PARTS...: score the results in the directory DECODED, as a whole and
# by PARTS, which are options of the scorer.
score() {
    local name=$1 decoded=$2
    shift 2
    if [ -f "data/$name/stm" ]; then
        # The file is empty if the model has decoded all to nothing.
        [ -f "$decoded/ctm" ] || require "$decoded/ctm" 12
        tool score_hub5 --stm "data/$name/stm" --glm "data/$name/glm" \
            --ctm "$decoded/ctm" --out "$decoded/score_wer" "$@"
    else
        tool score --ref "dump/$name/text" --hyp "$decoded/text" \
            --utt2spk "dump/$name/utt2spk" --out "$decoded/score_wer" "$@"
    fi
}

# The functions below are those of decode.sh.

# decode_part NUMBER: decode every nj-th utterance. This process becomes asr_inference, or
# ctc_inference if the configuration says so, so that signals reach that itself. Queued
# parts find an earlier decoding, whose results are removed.
decode_part() {
    local keys=$out/log/keys.$1.scp output=$out/log/output.$1 more=()
    rm -rf "$output" "$out"/{text,token,ctm,score_wer}
    mkdir -p "$out/log"
    [ -z "$arpa" ] || more=(--config "$config" --ngram_file "$arpa")
    if [ -n "$(search_of "$config")" ]; then
        exec "$python" -m espnet_distopt ctc_inference \
            --exp "$exp" --model "$model" --data "$data" "${more[@]}" \
            --out "$output/1best_recog" --job "$1" --nj "$nj"
    fi
    awk -v job="$1" -v nj="$nj" 'NR % nj == job % nj' "$data/wav.scp" >"$keys"
    [ -z "$lm" ] ||
        more+=(--lm_train_config "$lm/config.yaml" --lm_file "$lm/valid.loss.ave.pth")
    [ -z "$ngram_file" ] || more+=(--ngram_file "$ngram_file")
    exec "$python" -m espnet_distopt asr_inference \
        --ngpu 0 --batch_size 1 --config "$config" \
        --data_path_and_name_and_type "$data/wav.scp,speech,kaldi_ark" \
        --key_file "$keys" \
        --asr_train_config "$exp/config.yaml" --asr_model_file "$exp/$model" "${more[@]}" \
        --output_dir "$output"
}

# decoded_so_far: print the number of decoded utterances; both programs log a line with
# 'speech length' for each of them.
decoded_so_far() { cat "$out"/log/decode.*.log | grep -c 'speech length: ' || true; }

# result NUMBER NAME: print the path of a file that a part has written.
result() { echo "$out/log/output.$1/1best_recog/$2"; }

# merge: join the results of all parts, and align the words if the data have an STM.
merge() {
    joined token
    mv "$out/token"{.tmp,}
    joined text
    if [ -f "$align_data/stm" ]; then
        logged "$out/log/align.log" "aligning $data" \
            "$python" -m espnet_distopt ctc_align --exp "$exp" --model "$model" \
            --data "$align_data" --dump "$data" --tokens "$out/token" --out "$out/ctm"
    fi
    mv "$out/text"{.tmp,}
}
