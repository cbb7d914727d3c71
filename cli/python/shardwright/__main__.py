# SPDX-License-Identifier: Apache-2.0
"""python -m shardwright: the program."""
import sys

from ._program import main

sys.exit(main())
