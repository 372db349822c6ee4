"""Entry point of `python -m benchmarks`."""

import sys

from benchmarks.main import main

sys.exit(main())
