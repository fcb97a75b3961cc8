#!/bin/sh
# Adds up 1 + 2 + ... + $STEPS, one number a step, and goes on from its newest checkpoint: a file `sum-STEP` in
# $CHECKPOINT_DIR, which the job file names to tf-supervisor. It is written under another name and then renamed.
set -eu
every=10
step=0
sum=0

save() {
    echo "$sum" >"$CHECKPOINT_DIR/new"
    mv "$CHECKPOINT_DIR/new" "$CHECKPOINT_DIR/sum-$step"
    rm -f "$CHECKPOINT_DIR/sum-$((step - 3 * every))"
}

newest=$(ls "$CHECKPOINT_DIR" | sed -n 's/^sum-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
if [ -n "$newest" ]; then
    step=$newest
    read -r sum <"$CHECKPOINT_DIR/sum-$newest"
    echo "goes on from step $step"
fi
while [ "$step" -lt "$STEPS" ]; do
    step=$((step + 1))
    sum=$((sum + step))
    echo "step $step"
    if [ $((step % every)) -eq 0 ]; then
        save
    fi
    sleep "$PAUSE"
done
echo "the sum of 1 to $STEPS is $sum"
