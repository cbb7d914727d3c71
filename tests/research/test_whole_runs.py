# SPDX-License-Identifier: Apache-2.0
"""The production factor and the judge of batch laws find what is planted."""
import math

import pytest

from profiles.research import critical_batch, product, whole_runs


def family(name, n, ratio, small=0.0):
    return [{"id": f"{name}{i}", "family": name, "parameters": 1e10, "peak_flops": 3e14, "ideal_gpu_hours": 100.0,
             "small_in_large": small, "step_half_width": 0.1, "published_gpu_hours": 100 * ratio} for i in range(n)]


def test_a_family_of_n_weighs_its_root():
    found = whole_runs.fitted(family("many", 16, math.exp(0.2)) + family("one", 1, math.exp(0.7)) + family("two", 4, math.exp(0.2)))
    assert found["log_factor"] == round(1.9 / 7, 4)  # (4 x 0.2 + 1 x 0.7 + 2 x 0.2) / 7
    assert found["step_half_width"] == 0.1


def test_the_width_is_that_of_families_left_out():
    found = whole_runs.fitted([run for i in range(40) for run in family(f"f{i}", 1, 1.25 if i % 2 else 1 / 1.25)])
    # Without itself, a family is log(1.25) x (1 + 1/39) from the mean of the others.
    assert found["half_widths"] == [round(math.log(1.25) * 40 / 39, 4)] * 2
    assert found["level"] == 0.95
    assert found["coverage"]["in_sample"]["inside"] == 40 and found["coverage"]["family_left_out"]["inside"] >= 38


def test_the_level_falls_until_the_interval_is_of_use():
    runs = [run for i in range(34) for run in family(f"f{i}", 1, 1)]
    found = whole_runs.fitted(runs + [run for i in range(6) for run in family(f"wild{i}", 1, 5 if i % 2 else 0.2)])
    assert found["level"] < 0.85 and math.exp(sum(found["half_widths"])) <= whole_runs.WIDEST
    assert found["coverage"]["family_left_out"]["inside"] < found["coverage"]["family_left_out"]["n"]


def test_finds_the_slope_of_small_models_and_ends_that_differ():
    runs = [run for i in range(30) for run in family(f"f{i}", 1, math.exp(0.1 * (i % 5) + (0.3 if i % 10 == 0 else 0)), i % 5)]
    found = whole_runs.fitted(runs)
    assert found["small_model"] == pytest.approx(0.1, abs=0.03)
    below, above = found["half_widths"]
    assert above > 2 * below


def test_two_families_are_too_few():
    with pytest.raises(product.Refused, match="2 families"):
        whole_runs.fitted(family("a", 3, 1) + family("b", 3, 1))


def test_a_law_is_judged_by_the_batches_that_it_calls_too_large():
    judged = critical_batch.judged([0.1, 0.4, 1.6])
    assert (judged["n"], judged["beyond"], judged["median_share"], judged["greatest_share"]) == (3, 1, 0.4, 1.6)
    assert judged["spread"] == pytest.approx(math.log(4) * math.sqrt(2 / 3), abs=1e-4)
