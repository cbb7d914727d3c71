# SPDX-License-Identifier: Apache-2.0
"""What stands in profiles/data/fitted, found from published rows: `python3 -m profiles.research` (README.md)."""
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices, and the product has threads of its own
