#!/usr/bin/env bash
# Make the packaged base model anew, from nothing but this repository:
#
#   bash examples/base_model/recipe.sh
#
# Demonstrations of every domain are played, a tokenizer is trained on them, a small Llama with
# random weights reads them whole (pretrain.yaml), then learns to say the assistant's part of
# others (instruct.yaml). The demonstrator is a novice that slips, so the model acts and errs:
# reinforcement learning has something to do. Seeds are fixed: the same machine gives the same
# weights. Everything in between stays in runs/base_model/ to look at.
#
# Tune by environment: PRETRAIN and INSTRUCT demonstrations of each domain, JOBS episodes at once,
# VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FFN of the model, OUT its folder, LIMOSA the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PRETRAIN=${PRETRAIN:-12000}
INSTRUCT=${INSTRUCT:-3000}
JOBS=${JOBS:-16}
OUT=${OUT:-src/limosa/models/packaged/limosa-base}
MAX_WEIGHTS_BYTES=$((16 * 1024 * 1024))

work=runs/base_model
limosa=${LIMOSA:-.venv/bin/limosa}
domains=(code_engineering long_horizon_agent knowledge_research)

play() { # play COUNT FIRST SEED FILE: demonstrations of every domain, tasks FIRST and onwards
    local counts=()
    for domain in "${domains[@]}"; do counts+=(--domain "$domain=$1"); done
    "$limosa" demos "${counts[@]}" --first "$2" --seed "$3" --jobs "$JOBS" --out "$4"
}

rm -rf "$work"
play "$PRETRAIN" 0 1 "$work/pretrain.jsonl"
play "$INSTRUCT" "$PRETRAIN" 2 "$work/instruct.jsonl"

"$limosa" models new --corpus "$work/pretrain.jsonl" --seed 0 --out "$work/start" \
    --vocabulary "${VOCABULARY:-2048}" --width "${WIDTH:-192}" --layers "${LAYERS:-4}" \
    --heads "${HEADS:-6}" --kv-heads "${KV_HEADS:-2}" --ffn "${FFN:-512}"
"$limosa" sft examples/base_model/pretrain.yaml
"$limosa" sft examples/base_model/instruct.yaml

"$limosa" models check "$work/instructed"
bytes=$(wc -c <"$work/instructed/model.safetensors")
if ((bytes > MAX_WEIGHTS_BYTES)); then
    echo "error: the weights have $bytes bytes, at most $MAX_WEIGHTS_BYTES may be packaged" >&2
    echo "hint: make the model smaller: WIDTH, LAYERS, FFN, VOCABULARY" >&2
    exit 1
fi
rm -rf "$OUT"
mkdir -p "$(dirname "$OUT")"
cp -r "$work/instructed" "$OUT"
echo "packaged as $OUT"
