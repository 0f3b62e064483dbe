"""`python -m dynwarp` and the `dynwarp` command."""

import sys

from dynwarp.cli import main

if __name__ == "__main__":
    sys.exit(main())
