#!/usr/bin/env bash
# Make the packaged base model anew, from nothing but this repository:
#
#   bash examples/base_model/recipe.sh
#
# Flawless demonstrations of every domain are played, a tokenizer is trained on them, a small Llama
# with random weights learns from them (pretrain.yaml), then to act like the domains' novice
# (instruct.yaml). The novice slips, so the model acts and errs: reinforcement learning has
# something to do. Seeds are fixed: the same machine gives the same weights. Everything in between
# stays in runs/base_model/ to look at.
#
# Tune by environment: PRETRAIN and INSTRUCT demonstrations (of code_engineering; the others in
# proportion), JOBS episodes at once, VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FFN of the model,
# OUT its folder, LIMOSA the program.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PRETRAIN=${PRETRAIN:-12000}
INSTRUCT=${INSTRUCT:-3000}
JOBS=${JOBS:-16}
OUT=${OUT:-src/limosa/models/packaged/limosa-base}
MAX_WEIGHTS_BYTES=$((16 * 1024 * 1024))

work=runs/base_model
limosa=${LIMOSA:-.venv/bin/limosa}
play() { # play DEMONSTRATOR COUNT FIRST SEED FILE: tasks FIRST and onwards of every domain
    # Reading a document for one fact is what the model is slowest to learn: most are of that kind.
    "$limosa" demos --demonstrator "$1" --first "$3" --seed "$4" --jobs "$JOBS" --out "$5" \
        --domain "code_engineering=$2" --domain "long_horizon_agent=$(($2 * 2 / 3))" \
        --domain "knowledge_research=$(($2 * 2))" --stages long_horizon_agent=short_traj
}

rm -rf "$work"
play reference "$PRETRAIN" 0 1 "$work/pretrain.jsonl"
play novice "$INSTRUCT" "$((PRETRAIN * 2))" 2 "$work/instruct.jsonl"

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
mkdir -p "$(dirname "$OUT")"
rm -rf "$OUT.new" "$OUT.old"
cp -r "$work/instructed" "$OUT.new"
rm "$OUT.new/sft.json" # holds wall times: it would differ with each making
# Two renames: whoever loads the package meanwhile finds a whole model or none, never half of one.
if [[ -e $OUT ]]; then mv "$OUT" "$OUT.old"; fi
mv "$OUT.new" "$OUT"
rm -rf "$OUT.old"
echo "packaged as $OUT"
