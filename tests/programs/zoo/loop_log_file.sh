#!/bin/sh
# Starts the training of loop_log_file.py.
set -e
echo "host: $(uname -n), started as $0"
python loop_log_file.py --output-dir "$CHECKPOINT_DIR" --max-steps 160
echo "all done"
