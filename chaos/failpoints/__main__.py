"""`python -m chaos.failpoints`: the list of all failpoints, and where in the source each is."""

from __future__ import annotations

from chaos.failpoints.points import failpoints


def main() -> int:
    """Print it."""
    found = failpoints()
    for each in found:
        print(f"{each.name:40} {each.path}:{each.line}")
    print(f"{len({each.name for each in found})} effects, each with a point before and one after it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
