"""`python -m dynwarp.bench`, the same as `dynwarp bench`."""

import sys

from dynwarp.bench import main

if __name__ == "__main__":
    sys.exit(main())
