# SPDX-License-Identifier: Apache-2.0
"""Robust fits find planted constants."""
import numpy as np
import pytest

from profiles.research import robust


class Planted:
    """log of a sum of two costs that share the rows in different proportions, against planted values with noise; some rows
    are twice as slow for no reason."""

    def __init__(self, rows, sigma, wrong=0, constants=2):
        random = np.random.default_rng(3)
        self.truth = np.log([2.0, 0.5])
        self.share = np.arange(rows) % 10 / 10
        self.noise = np.where(np.arange(rows) < wrong, np.log(2.0), random.normal(0, sigma, rows))
        one = np.ones(constants)
        self.prior = robust.Prior(0 * one, one, np.log(0.1) * one, np.log(10.0) * one)
        self.predictions = 0

    def cost(self, x):
        return np.log((1 - self.share) * np.exp(x[0]) + self.share * np.exp(x[1]) + 0.1)

    def residuals(self, x, which, others=None):
        self.predictions += int(np.sum(which))
        return np.where(which, self.cost(x) - self.cost(self.truth) - self.noise, 0 if others is None else others)

    def slopes(self, x, which):
        step = lambda j, by: self.residuals(x + by * (np.arange(len(x)) == j), which)
        return np.column_stack([(step(j, 0.02) - step(j, -0.02)) / 0.04 for j in range(len(x))])


def test_recovers_planted_values_through_wrong_rows():
    planted, weights = Planted(100, 0.01, wrong=12), np.ones(100)
    fit = robust.fit_all(planted, weights)
    assert fit.x[:2] == pytest.approx(planted.truth, abs=0.04)
    errors = robust.standard_errors(planted.prior, weights, fit)
    assert all((errors > 0) & (errors < 0.1))
    assert planted.predictions < 100 * 80


def test_the_prior_holds_what_no_row_sees_and_bounds_hold_what_rows_pull():
    planted = Planted(50, 0.01, constants=3)
    planted.prior.centre[2], planted.prior.spread[2] = np.log(3.0), 0.2
    planted.prior.upper[0] = np.log(1.5)  # the truth is 2
    fit = robust.fit_all(planted, np.ones(50))
    assert fit.x[2] == np.log(3.0)
    assert fit.x[0] == pytest.approx(np.log(1.5), abs=1e-9)
    assert robust.standard_errors(planted.prior, np.ones(50), fit)[2] == pytest.approx(0.2)


def test_a_row_without_weight_changes_nothing():
    planted, weights = Planted(60, 0.02), np.ones(60)
    weights[7] = 0
    before = robust.fit_all(planted, weights).x
    planted.noise[7] += 3
    assert robust.fit_all(planted, weights).x == pytest.approx(before, abs=1e-9)


def test_a_fit_without_a_row_by_the_slopes_of_all_ends_where_one_of_its_own_does():
    planted, weights = Planted(60, 0.02), np.ones(60)
    full = robust.at_rest(planted.prior, weights, robust.fit_all(planted, weights))
    assert robust.fit_without(planted, weights, full) == pytest.approx(full.x, abs=1e-6)
    predictions = planted.predictions
    weights[11] = 0
    quick = robust.fit_without(planted, weights, full)
    assert planted.predictions == predictions, "nothing is predicted while the slopes hold"
    assert quick == pytest.approx(robust.fit_all(planted, weights).x, abs=0.005)
    assert np.any(quick != full.x)
