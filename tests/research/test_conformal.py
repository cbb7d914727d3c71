# SPDX-License-Identifier: Apache-2.0
"""Widths from held-out errors hold what they promise."""
import math

import numpy as np
import pytest

from profiles.research import conformal


def run(source, model, error, gpu="gpu"):
    return {"id": f"{source} {model} {error}", "source": source, "stack": "eager", "gpu": gpu, "model": model,
            "log_error": error, "log_error_cell_out": 2 * error, "log_error_source_out": 3 * error}


def apart(errors):
    """Cells of one run each."""
    return [(str(place), error) for place, error in enumerate(errors)]


def some_runs():
    runs = [run("large", f"m{cell}", 0.001 * (cell + 1)) for cell in range(20) for _ in range(3)]
    return runs + [run(f"small{i}", "m", 0.02, "other") for i in range(3)]


def test_takes_the_finite_sample_quantile():
    errors = apart(range(19, 0, -1))
    assert conformal.half_width(errors, 0.9) == 18  # ceil(20 * 0.9) of 19
    assert conformal.half_width(errors, 0.95) == 19
    assert conformal.half_width(errors, 0.96) == 19 * conformal.BEYOND
    assert conformal.half_width([], 0.9) == 0


def test_a_cell_of_many_runs_counts_as_one():
    errors = apart([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]) + [("large", 0.01)] * 1000
    assert conformal.half_width(errors, 0.9) == 0.9  # ten cells and the new one
    assert conformal.half_width(errors, 0.5) == 0.5


@pytest.mark.parametrize("cells", [19, 60])
def test_covers_new_cells_at_the_level_whatever_the_distribution(cells):
    random = np.random.default_rng(11)
    error = lambda shared: abs(shared + random.normal(0, 0.02))
    draws, inside = 3000, 0
    for _ in range(draws):
        errors = []
        for cell in range(cells):
            shared = 0.02 * random.standard_cauchy()
            errors += [(cell, error(shared)) for _ in range(cell % 4 + 1)]
        inside += error(0.02 * random.standard_cauchy()) <= conformal.half_width(errors, 0.9)
    assert 0.9 - 0.02 < inside / draws < 0.9 + 1 / (cells + 1) + 0.02


def test_widths_grow_with_novelty():
    widths = conformal.widths(some_runs(), 0.9)
    cell, stack, source, nothing = (width["half_width"] for width in widths)
    assert 0.015 < cell < 0.025  # of 20 cells with several runs, up to 0.02
    assert stack == pytest.approx(2 * cell, abs=1e-4)
    assert source > stack and nothing >= source
    assert [width["cells"] for width in widths] == [20, 20, 23, 20]


def test_the_quantile_of_few_cells_does_not_widen_those_of_many():
    runs = [run(f"s{cell}", "m", 0.002 * (cell % 10 + 1), f"gpu {cell // 2}") for cell in range(30)]
    runs += [run("table", f"m{cell}", 0.06 if cell == 0 else 0.002) for cell in range(5) for _ in range(2)]
    cell, stack, source, _ = conformal.widths(runs, 0.9)
    assert (cell["cells"], source["cells"]) == (5, 35)
    assert source["half_width"] < 0.1  # 1.25 times 2 times 0.06 of five cells is 0.15
    assert stack["half_width"] == source["half_width"] >= cell["half_width"]


def test_a_far_run_is_outside_and_its_neighbours_are_inside():
    runs = some_runs()
    runs[4] |= {"log_error": 0.5, "id": "far"}
    inside = conformal.inside(runs, 0.9, {})
    assert not inside[4][0] and inside[5][0]


def test_sides_and_sources_of_memory_have_widths_of_their_own():
    peaks = [{"id": f"{source} {i}", "source": source, "log_error": 0.02 * (i + 1) if source == 9 else 0.002 * (i - 5)}
             for source in range(10) for i in range(10)]
    runs = conformal.memory_widths(peaks, 0.9)
    assert runs == {"more": pytest.approx(0.12), "less": pytest.approx(0.01)}  # the 96th of 101 places
    sources = conformal.memory_widths(peaks, 0.9, "source")
    assert sources["more"] == pytest.approx(conformal.BEYOND * 0.2)  # ten sources cannot tell a twentieth
    assert sources["less"] >= runs["less"]
    assert conformal.memory_inside(peaks, 0.9, "id") >= 90
    assert conformal.memory_inside(peaks, 0.9, "source") <= 91  # without its source nobody knows that such errors exist


def test_the_mixture_finds_its_two_spreads():
    random = np.random.default_rng(5)
    outlies = random.random(4000) < conformal.OUTLIER_SHARE
    errors = np.where(outlies, random.normal(0, 0.15, 4000), random.normal(0, 0.03, 4000))
    ordinary, outlying, share = conformal.mixture(apart(errors))
    assert (ordinary, outlying, share) == (pytest.approx(0.03, abs=0.002), pytest.approx(0.15, abs=0.03),
                                           pytest.approx(conformal.OUTLIER_SHARE, abs=0.025))
    for level in (0.5, 0.9, 0.97):
        assert np.mean(np.abs(errors) <= conformal.width_by_cells(apart(errors), level)) == pytest.approx(level, abs=0.015)


def test_an_outlier_hardly_moves_the_mixture_and_runs_that_agree_count_as_one_cell():
    errors = apart([0.001 * i for i in range(1, 41)])
    assert conformal.width_by_cells(errors + [("far", 0.5)], 0.9) < 1.2 * conformal.width_by_cells(errors, 0.9)
    cells = apart([0.01 * (cell % 7) for cell in range(30)])
    many = cells + [("1", 0.01)] * 300
    assert conformal.width_by_cells(many, 0.9) == pytest.approx(conformal.width_by_cells(cells, 0.9), rel=0.15)
    between, within = conformal.error_variances(many)
    assert between / (between + within) > 0.9


def test_the_rule_covers_its_level_in_simulation():
    assert 0.88 < conformal.simulated_coverage(some_runs(), 0.9, tables=200) < 0.97
    assert math.isclose(conformal.half_width([("a", 0.0), ("b", 0.0)], 0.5), 0)
