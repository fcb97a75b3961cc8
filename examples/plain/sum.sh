#!/bin/sh
# Adds up 1 + 2 + ... + $STEPS, one number a step, and goes on from its newest checkpoint.
#
# A checkpoint is one line, "step sum", in a file that is named like TensorFlow's: a data file and an index, and
# then the file `checkpoint`, which names them and is replaced in one go. Then tf-supervisor sees and keeps it.
set -eu
every=10
step=0
sum=0

save() {
    name="sum-$step"
    echo "$step $sum" >"$CHECKPOINT_DIR/$name.data-00000-of-00001"
    echo "$name" >"$CHECKPOINT_DIR/$name.index"
    echo "model_checkpoint_path: \"$name\"" >"$CHECKPOINT_DIR/checkpoint.new"
    mv "$CHECKPOINT_DIR/checkpoint.new" "$CHECKPOINT_DIR/checkpoint"
    rm -f "$CHECKPOINT_DIR/sum-$((step - 3 * every))".*
}

if [ -f "$CHECKPOINT_DIR/checkpoint" ]; then
    name=$(sed -n 's/^model_checkpoint_path: "\(.*\)"$/\1/p' "$CHECKPOINT_DIR/checkpoint")
    read -r step sum <"$CHECKPOINT_DIR/$name.data-00000-of-00001"
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
