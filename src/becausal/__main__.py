"""`python -m becausal`."""

import sys

from becausal.cli import main

if __name__ == "__main__":
    sys.exit(main())
