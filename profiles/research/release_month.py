# SPDX-License-Identifier: Apache-2.0
"""The month of a release, by what tables of published runs call it (profiles/stack_file.h knows the day, too)."""

import re


def month_in(text):
    """Of "NeMo 26.04.01" that is "2026-04"; empty where the text names none."""
    found = re.search(r"\b(?:20)?(2\d)[-.](\d\d)", text)
    return f"20{found[1]}-{found[2]}" if found else ""


def release_month(row, releases):
    """Of the row's version, or what `releases` (fitted/software_age.json) says of versions that begin so."""
    version = row.get("version", "")
    known = releases.get(row["stack"], {})
    return month_in(version) or next((month for begin, month in known.items() if version.startswith(begin)), "")
