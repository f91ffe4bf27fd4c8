#!/usr/bin/env bash
# Decode one data directory with ESPnet's own asr_inference, in parallel processes.
# Writes OUT/token, with --align_data OUT/ctm, and OUT/text, last and whole; a log for
# each process in OUT/log.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

# options
exp=                        # experiment directory, with config.yaml
model=valid.loss.ave.pth    # model file in it
data=                       # directory with wav.scp, as format_data writes it
config=conf/decode.yaml     # options of asr_inference
out=                        # directory to make
nj=2                        # processes
lm=                         # directory of a language model (local/lm.sh), or none
ngram_file=                 # n-gram over the tokens, as KenLM reads it, or none
align_data=                 # data directory: also tell the times of the words, in a CTM
# end of options

# shellcheck source=log.sh
. "$here/log.sh"
# shellcheck source=parse_options.sh
. "$here/parse_options.sh"
# shellcheck source=jobs.sh
. "$here/jobs.sh"

for option in exp data out; do
    [ -n "${!option}" ] || die "decode.sh: --$option is needed"
done
[ "$nj" -ge 1 ] || die "decode.sh: --nj $nj: at least one process must decode"
needed=("$exp/config.yaml" "$exp/$model" "$data/wav.scp" "$config")
more=()
if [ -n "$lm" ]; then
    needed+=("$lm/config.yaml" "$lm/valid.loss.ave.pth")
    more+=(--lm_train_config "$lm/config.yaml" --lm_file "$lm/valid.loss.ave.pth")
fi
if [ -n "$ngram_file" ]; then
    needed+=("$ngram_file")
    more+=(--ngram_file "$ngram_file")
fi
for file in "${needed[@]}"; do
    [ -s "$file" ] || die "decode.sh: $file: no such file, or empty"
done

total=$(wc -l <"$data/wav.scp")
total=$((total))
[ "$nj" -le "$total" ] || nj=$total
log "decoding $data with $exp/$model: $total utterances, $nj process(es)"
rm -rf "$out"
mkdir -p "$out/log"
for ((job = 1; job <= nj; job++)); do
    awk -v job="$job" -v nj="$nj" 'NR % nj == job % nj' "$data/wav.scp" >"$out/log/keys.$job.scp"
    start "${python:-python3}" -m espnet2.bin.asr_inference \
        --ngpu 0 --batch_size 1 --config "$config" \
        --data_path_and_name_and_type "$data/wav.scp,speech,kaldi_ark" \
        --key_file "$out/log/keys.$job.scp" \
        --asr_train_config "$exp/config.yaml" --asr_model_file "$exp/$model" "${more[@]}" \
        --output_dir "$out/log/output.$job" >"$out/log/decode.$job.log" 2>&1
done

# asr_inference logs one such line an utterance.
decoded() { cat "$out"/log/decode.*.log | grep -c 'speech length: ' || true; }

jobs=("${job_pids[@]}")
began=$SECONDS shown=$SECONDS
for ((job = 1; job <= nj; job++)); do
    while kill -0 "${jobs[job - 1]}" 2>/dev/null; do
        sleep 0.2
        if ((SECONDS - shown >= 10)); then
            log "  decoded $(decoded) of $total"
            shown=$SECONDS
        fi
    done
    status=0
    wait "${jobs[job - 1]}" || status=$?
    if [ "$status" != 0 ]; then
        show_failure "$out/log/decode.$job.log" "decoding $data" "$status"
        exit "$status"
    fi
done

job_pids=()

# joined NAME: OUT/NAME.tmp, the results of all processes, an utterance a line, sorted.
joined() {
    cat "$out"/log/output.*/1best_recog/"$1" | sort -k 1,1 >"$out/$1.tmp"
    count=$(wc -l <"$out/$1.tmp")
    [ "$((count))" = "$total" ] ||
        die "decoding $data: $((count)) of $total utterances have a result, see $out/log"
}

joined token
mv "$out/token"{.tmp,}
joined text
log "decoded $total utterances in $((SECONDS - began)) s"
if [ -n "$align_data" ]; then
    logged "$out/log/align.log" "aligning $data" \
        "${python:-python3}" -m espnet_distopt.bin.ctc_align --exp "$exp" --model "$model" \
        --data "$align_data" --dump "$data" --tokens "$out/token" --out "$out/ctm"
fi
mv "$out/text"{.tmp,}
