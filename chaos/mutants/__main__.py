"""`python -m chaos.mutants` runs `chaos.mutants.command`."""

import sys

from chaos.mutants.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
