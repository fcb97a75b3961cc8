"""`python -m chaos.mutants` runs `chaos.mutants.command`."""

import signal
import sys

from chaos.mutants.command import main

if __name__ == "__main__":
    # Whatever ends us, what we started ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
