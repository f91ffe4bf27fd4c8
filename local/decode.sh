#!/usr/bin/env bash
# This script decodes one data directory in parallel processes: speech with ESPnet's own
# asr_inference, text lines with ocr_inference. For speech it writes OUT/token and, if
# there is Hub5 scoring, OUT/ctm; for text lines it writes OUT/unfit. It writes OUT/text
# last, so that this file exists only if all is complete. OUT/log has a log of each
# process. The variable cmd_backend says where the processes run.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# options
exp=                        # experiment directory, with config.yaml
model=valid.loss.ave.pth    # model file in it
data=                       # directory with wav.scp, as format_data writes it, or of lines
feats_type=raw              # raw: speech; lines: images of text lines
system=ctc                  # ctc; or hybrid, which decodes the GMM itself if --exp is it
gmm=                        # of a hybrid system: directory of gmm_train
config=conf/decode.yaml     # options of asr_inference or ocr_inference
out=                        # directory to make
nj=2                        # processes
lm=                         # directory of a language model (local/lm.sh), or none
ngram_file=                 # n-gram over the tokens, as KenLM reads it, or none
arpa=                       # n-gram of the search (ARPA), if the config has one that needs it
align_data=                 # what --data was made of; if it has an STM, tell the times of words
part=                       # only this one of the nj parts, or only `merge`; all if empty
# end of options

# shellcheck source=log.sh
. "$here/log.sh"
given=("$@")
# shellcheck source=parse_options.sh
. "$here/parse_options.sh"
# shellcheck source=jobs.sh
. "$here/jobs.sh"
if [ -n "$part" ]; then
    # This process is a job, which does not inherit the environment of asr.sh.
    # shellcheck source=../egs/mini_swbd/asr1/path.sh
    . ./path.sh
fi
python=${python:-python3}
# shellcheck source=backend.sh
. "$here/backend.sh"
# shellcheck source=made_of.sh
. "$here/made_of.sh"

case $feats_type in
    raw)
        # shellcheck source=feats_raw.sh
        . "$here/feats_raw.sh"
        ;;
    lines)
        # shellcheck source=feats_lines.sh
        . "$here/feats_lines.sh"
        ;;
    *) die "decode.sh: --feats_type $feats_type: expected raw or lines" ;;
esac

if [ "$system" = hybrid ]; then
    # shellcheck source=system_hybrid.sh
    . "$here/system_hybrid.sh"
fi

# all_kept: end the script if stage 3 has left out a part of the set, as it does if no
# --test_sets names the set.
all_kept() {
    local lacking
    [ -f "$align_data/text" ] || return 0
    lacking=$(awk 'NR == FNR { kept[$1]; next } !($1 in kept)' \
        "$data/$dump_list" "$align_data/text" | wc -l)
    [ "$((lacking))" = 0 ] ||
        die "$data lacks $((lacking)) of the ids of $align_data/text, as training sets may:" \
            "run stage 3 for it (--stage 3 --stop_stage 3 --test_sets ${data##*/})"
}

for option in exp data out; do
    [ -n "${!option}" ] || die "decode.sh: --$option is needed"
done
[ "$nj" -ge 1 ] || die "decode.sh: --nj $nj: at least one process must decode"
needed=()
[ "$exp" = "$gmm" ] || needed+=("$exp/config.yaml")
needed+=("$exp/$model" "$data/$dump_list" "$config")
[ -z "$lm" ] || needed+=("$lm/config.yaml" "$lm/valid.loss.ave.pth")
[ -z "$ngram_file" ] || needed+=("$ngram_file")
[ -z "$arpa" ] || needed+=("$arpa")
if [ "$dry_run" = false ]; then
    for file in "${needed[@]}"; do
        [ -s "$file" ] || die "decode.sh: $file: no such file, or empty"
    done
    all_kept
    total=$(wc -l <"$data/$dump_list")
    total=$((total))
    [ "$nj" -le "$total" ] || nj=$total
fi

# results NAME: print what all parts have written into NAME. An earlier decoding may have
# left more parts.
results() {
    local i
    for ((i = 1; i <= nj; i++)); do cat "$(result "$i" "$1")"; done
}

# joined NAME: write OUT/NAME.tmp, the sorted results of all parts, with one utterance per
# line; end the script if an utterance has no result.
joined() {
    results "$1" | sort -k 1,1 >"$out/$1.tmp"
    count=$(wc -l <"$out/$1.tmp")
    [ "$((count))" = "$total" ] ||
        die "decoding $data: $((count)) of $total utterances have a result, see $out/log"
}

# finish: join the results of all parts, and note which model they are of, and which file
# that is a link to.
finish() {
    local target
    merge
    if [ "$dry_run" = false ]; then
        target=$(readlink "$exp/$model") || target=
        echo "$model${target:+ ($target)}" >"$out/model"
    fi
    made_of "$out/text" "$exp/$model"
}

case $part in
    '') ;;
    merge)
        finish
        exit
        ;;
    *)
        [[ $part =~ ^[1-9][0-9]*$ ]] ||
            die "decode.sh: --part $part: expected a number, or merge"
        if [ "$part" -le "$nj" ]; then decode_part "$part"; fi
        log "part $part has no utterances"
        exit
        ;;
esac

show_progress() { log "  decoded $(decoded_so_far) of $total"; }

if [ "$dry_run" = false ]; then
    log "decoding $data with $exp/$model by $config: $total utterances, $nj process(es)"
    rm -rf "$out"
    mkdir -p "$out/log"
fi
began=$SECONDS
name=${exp##*/"$task"_}.${out##*/}
array "$nj" decode "decode.$name" "$out/log/decode.JOB.log" "decoding $data" \
    "$here/decode.sh" "${given[@]}" --nj "$nj" --part JOB
if [ "$cmd_backend" = slurm ]; then
    job decode "merge.$name" "$out/log/merge.log" "merging $data" -- \
        "$here/decode.sh" "${given[@]}" --nj "$nj" --part merge
else
    finish
fi
[ "$dry_run" = true ] || log "decoded $total utterances in $((SECONDS - began)) s"
