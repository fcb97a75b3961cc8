"""`python -m chaos`: see docs/chaos.md."""

from chaos.command import main

if __name__ == "__main__":
    main()
