"""`python -m experiments`: every script, one after another; `make experiments` runs them on a tiny random model."""

import argparse
import importlib
import sys

from experiments.pac.settings import Size
from experiments.pac.summary import EXPERIMENTS


def main(arguments: list[str] | None = None) -> int:
    """Run all scripts, or those named; options that are not known here go to each of them.

    Returns:
        The exit code of the first script that fails, or 0.
    """
    parser = argparse.ArgumentParser("python -m experiments", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(EXPERIMENTS), metavar="NAME", help="these scripts only")
    parser.add_argument(
        "--size", default=Size.SMOKE.value, help="smoke, local, reproduction or paper (default: %(default)s)"
    )
    options, passed_on = parser.parse_known_args(arguments)
    for name in options.only or EXPERIMENTS:
        sys.stderr.write(f"== {name}\n")
        code: int = importlib.import_module(f"experiments.pac.{name}").main(["--size", options.size, *passed_on])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
