"""`python -m becausal`."""

import sys

from becausal.interfaces.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
