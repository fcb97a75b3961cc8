"""`python -m chaos`: see docs/chaos.md."""

import sys

from chaos.command import entry

if __name__ == "__main__":
    sys.exit(entry())
