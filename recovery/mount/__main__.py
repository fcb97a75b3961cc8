"""`python -m recovery.mount PARENT GENERATION`: serve the mount that is wished for it."""

import os
import sys
from pathlib import Path

from recovery.mount.serve import main

if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    # Threads that wait for a store which does not answer must not hold the end up.
    sys.stdout.flush()
    os._exit(status)
