# SPDX-License-Identifier: Apache-2.0
"""Widths of intervals from held-out errors, without assuming how the errors are distributed.

Conformal prediction: if a new run's error is exchangeable with errors e_1 .. e_n, it is at most their ceil((n + 1) level)-th
smallest with probability `level` or more, whatever the distribution. Runs of one cell (one source's runs of a model on a
GPU) share their error, so a cell is drawn first and then a run of it, and what counts for the finite sample is the number
of cells. Where the cells are many the width is that of a mixture of ordinary errors and outliers, whose spreads all errors
tell; where they are few it is the conformal quantile, and beyond the largest error where even that needs more.

How wide an interval has to be depends on how much is known of runs like the new one: each degree of novelty takes the
errors of runs that were as new to the constants that predicted them. Widths never fall with novelty.
"""
from __future__ import annotations

import collections
import math

import numpy as np
from scipy.special import erf

BEYOND = 1.25  # the largest error, where the cells are too few for the level
ENOUGH_FOR_SPREADS = 20  # cells
ENOUGH_CELLS = 3  # of a stack on a GPU
OUTLIER_SHARE, LEAST_OUTLIERS, MOST_OUTLIERS = 0.08, 0.02, 0.3
MEDIAN_OF_NORMAL = 0.6745
NOVELTIES = ("cell", "stack_gpu", "source_only", "nothing")


def half_width(errors, level):
    """Of (cell, error): the quantile of the mean of the cells' distributions, one cell more counted as beyond all."""
    if not errors:
        return 0.0
    runs_of = collections.Counter(cell for cell, _ in errors)
    ordered, share = sorted((abs(error), cell) for cell, error in errors), 0.0
    for error, cell in ordered:
        share += 1 / (runs_of[cell] * (len(runs_of) + 1))
        if share >= level - 1e-9:  # sums of reciprocals may miss the level by their last digit
            return error
    return BEYOND * ordered[-1][0]


def error_variances(errors):
    """(between cells, within them) by one-way random effects; shared errors are around zero."""
    cells = collections.defaultdict(list)
    for cell, error in errors:
        cells[cell].append(error)
    spare = len(errors) - len(cells)
    own = sum(sum(e * e for e in of) - sum(of) ** 2 / len(of) for of in cells.values())
    within = max(0.0, own / spare) if spare > 0 else 0.0
    means = sum((sum(of) / len(of)) ** 2 for of in cells.values()) / len(cells)
    return max(0.0, means - within * sum(1 / len(of) for of in cells.values()) / len(cells)), within


def mixture(errors):
    """(ordinary spread, outliers' spread, outliers' share) of the greatest likelihood. A cell of n runs whose errors
    correlate by r weighs as n / (1 + (n - 1) r) independent ones."""
    between, within = error_variances(errors)
    correlation = between / (between + within) if between + within > 0 else 0.0
    runs_of = collections.Counter(cell for cell, _ in errors)
    weights = np.array([1 / (1 + (runs_of[cell] - 1) * correlation) for cell, _ in errors])
    weights /= weights.sum()
    sizes = np.abs([error for _, error in errors])
    largest = sizes.max()
    if largest == 0:
        return 0.0, 0.0, OUTLIER_SHARE
    least = largest / 1000  # a single point would have any likelihood
    squares = sizes**2
    ordinary = max(least, float(np.median(sizes)) / MEDIAN_OF_NORMAL)
    outlying, share = 3 * ordinary, OUTLIER_SHARE
    for _ in range(500):
        outlies = share * np.exp(-0.5 * squares / outlying**2) / outlying
        outlies /= outlies + (1 - share) * np.exp(-0.5 * squares / ordinary**2) / ordinary
        outliers = float(weights @ outlies)
        before = ordinary, outlying
        ordinary = max(least, math.sqrt(float(weights @ ((1 - outlies) * squares)) / max(1e-12, 1 - outliers)))
        outlying = max(ordinary, math.sqrt(float(weights @ (outlies * squares)) / max(1e-12, outliers)))
        share = min(max(outliers, LEAST_OUTLIERS), MOST_OUTLIERS)
        if max(abs(ordinary - before[0]), abs(outlying - before[1])) < 1e-7 * largest:
            break
    return ordinary, outlying, share


def width_by_cells(errors, level):
    if len({cell for cell, _ in errors}) < ENOUGH_FOR_SPREADS:
        return half_width(errors, level)
    ordinary, outlying, share = mixture(errors)
    within = lambda width, spread: erf(width / spread / math.sqrt(2)) if spread > 0 else 1.0
    low, high = 0.0, 10 * max(ordinary, outlying)
    for _ in range(60):
        middle = (low + high) / 2
        covered = (1 - share) * within(middle, ordinary) + share * within(middle, outlying)
        low, high = (middle, high) if covered < level else (low, middle)
    return high


def cell_of(run):
    return f"{run['source']} | {run['gpu']} | {run['model']}"


def widths(runs, level, chips=None):
    """By novelty: words, runs, cells and half-width. `chips`: by GPU what it is counted under, where GPUs share one."""
    chip = lambda run: (chips or {}).get(run["gpu"], run["gpu"])
    pair = lambda run: (run["stack"], run["gpu"])
    runs_of_cell = collections.Counter(map(cell_of, runs))
    cells_of_pair, sources_of_chip = collections.defaultdict(set), collections.defaultdict(set)
    for run in runs:
        cells_of_pair[pair(run)].add(cell_of(run))
        sources_of_chip[chip(run)].add(run["source"])
    kinds = (
        ("the run left out, its cell known", "log_error", lambda run: runs_of_cell[cell_of(run)] > 1),
        ("the cell left out, three others with its stack on its GPU known", "log_error_cell_out",
         lambda run: len(cells_of_pair[pair(run)]) > ENOUGH_CELLS),
        ("the source left out", "log_error_source_out", lambda run: True),
        # Of a chip that nobody else ran nothing but the priors is left with its source.
        ("the source left out, the only one of its chip", "log_error_source_out",
         lambda run: len(sources_of_chip[chip(run)]) == 1),
    )
    found = []
    for novelty, (words, which, belongs) in zip(NOVELTIES, kinds):
        errors = [(cell_of(run), run[which]) for run in runs if belongs(run)]
        found.append({"novelty": novelty, "errors": words, "runs": len(errors), "cells": len({cell for cell, _ in errors}),
                      "half_width": float(width_by_cells(errors, level)) if errors else 0.0})
    # Where a width would fall with novelty, the errors of more cells speak for both: a quantile of few cells is wide
    # for being of few.
    for i in range(1, len(found)):
        if found[i]["half_width"] >= found[i - 1]["half_width"]:
            continue
        if found[i]["cells"] < found[i - 1]["cells"]:
            found[i]["half_width"] = found[i - 1]["half_width"]
        for known in found[:i]:
            known["half_width"] = min(known["half_width"], found[i]["half_width"])
    return found


def novelty_among(others, run, chips):
    """How much `others` tell of runs like this one: a place in NOVELTIES."""
    chip = lambda gpu: chips.get(gpu, gpu)
    cells = {(cell_of(other), other["stack"], other["gpu"]) for other in others}
    knows_source = any(other["source"] == run["source"] for other in others)
    if (cell_of(run), run["stack"], run["gpu"]) in cells:
        novelty = 0
    elif sum((stack, gpu) == (run["stack"], run["gpu"]) for _, stack, gpu in cells) >= ENOUGH_CELLS:
        novelty = 1
    else:
        knows_gpu = any(chip(other["gpu"]) == chip(run["gpu"]) for other in others)
        novelty = 2 if knows_source or knows_gpu else 3
    return novelty if knows_source else max(novelty, 2)


def inside(runs, level, chips):
    """Of each run whether its measured time lies in an interval made without it, without its cell, without its source."""
    kept = {}

    def covers(key, others, run, which):
        if key not in kept:
            kept[key] = widths(others, level, chips)
        return abs(run[which]) <= kept[key][novelty_among(others, run, chips)]["half_width"]

    result = []
    for run in runs:
        cell, source = cell_of(run), run["source"]
        result.append([
            covers(("run", run["id"]), [other for other in runs if other is not run], run, "log_error"),
            covers(("cell", cell), [other for other in runs if cell_of(other) != cell], run, "log_error_cell_out"),
            covers(("source", source), [other for other in runs if other["source"] != source], run, "log_error_source_out"),
        ])
    return result


def simulated_coverage(runs, level, tables=400, new_cells=20):
    """Share of errors of new cells that a width by this rule covers: tables of as many cells and runs as these, with normal
    errors shared by a cell, normal errors of each run, and outliers. A check of the rule, not of the simulator."""
    errors = [(cell_of(run), run["log_error_source_out"]) for run in runs]
    between, within = map(math.sqrt, error_variances(errors))
    cells = [cell for cell, _ in errors]
    random = np.random.default_rng(2026)

    def draw(shared):
        outliers = random.normal(0, 0.15, len(shared)) * (random.random(len(shared)) < OUTLIER_SHARE)
        return shared + random.normal(0, within, len(shared)) + outliers

    covered = 0
    for _ in range(tables):
        shared = {cell: random.normal(0, between) for cell in sorted(set(cells))}
        width = width_by_cells(list(zip(cells, draw(np.array([shared[cell] for cell in cells])))), level)
        covered += int(np.sum(np.abs(draw(random.normal(0, between, new_cells))) <= width))
    return covered / (tables * new_cells)


def memory_widths(peaks, level, by="id"):
    """{more, less} of (measured over predicted) peaks: each side on its own, at half of what the interval may miss, an
    error to the other side counted as none. By "source": of software that nobody measured, never narrower."""
    side = (1 + level) / 2
    found = {name: half_width([(peak[by], max(0.0, sign * peak["log_error"])) for peak in peaks], side)
             for name, sign in (("more", 1), ("less", -1))}
    if by == "id":
        return found
    known = memory_widths(peaks, level)
    return {name: max(found[name], known[name]) for name in found}


def memory_inside(peaks, level, by):
    """How many peaks lie inside widths made without the run ("id"), without its source ("source")."""

    def holds(peak):
        of = memory_widths([other for other in peaks if other[by] != peak[by]], level, by)
        return -of["less"] <= peak["log_error"] <= of["more"]

    return sum(map(holds, peaks))
