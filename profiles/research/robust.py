# SPDX-License-Identifier: Apache-2.0
"""Robust fits of a few positive constants to many measurements, where a prediction is expensive.

Minimized over x, the logarithms of the constants, within bounds:

  sum_i w_i phi(r_i(x)) / SCALE + 1/2 sum_j ((x_j - centre_j) / spread_j)^2,   phi(r) = sqrt(r^2 + RESOLVED^2)

with r = log(predicted / measured). Absolute deviations shrug off rows that are wrong for reasons that the model does not
know; rounded off below the precision of the rows they are differentiable; the log-normal prior holds what the rows leave
open. Residuals are made linear by differences, the linear problem, which is convex, is given to SciPy, and the step is
taken as far as the true objective falls.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

SCALE = 0.03  # a typical error of a published time
RESOLVED = 0.005  # what its digits resolve
DIFFERENCE = 0.02  # of x, on both sides
FIRST_RADIUS = 0.2  # how far one step may move a constant
ENOUGH = 5e-3  # of the objective: a tenth of a standard error
STILL = 1e-5  # steps below this move nothing
MOST_FAILURES = 3  # steps on end that do not help, each a fourth of the last
MOST_STEPS = 40
SLOPES_HOLD = 0.03  # of a residual: constants that move none by more are found by the slopes that are there


class Prior(NamedTuple):
    """In logarithms, an array each."""

    centre: np.ndarray
    spread: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


class Fit(NamedTuple):
    x: np.ndarray
    residuals: np.ndarray
    slopes: np.ndarray  # rows x constants, taken at slopes_at
    slopes_at: np.ndarray
    tilt: float | np.ndarray = 0.0  # see at_rest


def phi(residuals):
    return np.hypot(residuals, RESOLVED)


def objective(prior, weights, residuals, x):
    return weights @ phi(residuals) / SCALE + 0.5 * np.sum(((x - prior.centre) / prior.spread) ** 2)


def gradient(prior, weights, residuals, slopes, x):
    return slopes.T @ (weights * residuals / phi(residuals)) / SCALE + (x - prior.centre) / prior.spread**2


def solve(prior, weights, fit, radius=FIRST_RADIUS):
    """(x, objective) of the minimum with residuals on a line, within `radius` and the bounds."""

    def linear(x):
        residuals = fit.residuals + fit.slopes @ (x - fit.x)
        value = objective(prior, weights, residuals, x) - np.sum(fit.tilt * (x - fit.x))
        return value, gradient(prior, weights, residuals, fit.slopes, x) - fit.tilt

    low, high = np.maximum(prior.lower, fit.x - radius), np.minimum(prior.upper, fit.x + radius)
    found = minimize(linear, fit.x, jac=True, method="L-BFGS-B", bounds=list(zip(low, high)),
                     options={"ftol": 1e-14, "gtol": 1e-9, "maxiter": 2000})
    x = np.where(np.abs(found.x - fit.x) < STILL, fit.x, found.x)
    return x, linear(x)[0]


def moved(fit, x, weights, by):
    """The rows that x moves by more than `by` from where their slopes were taken: what moves little is nearly on a line."""
    return (np.abs(fit.slopes @ (x - fit.slopes_at)) > by) & (weights > 0)


def descend(problem, weights, fit, slopes_hold=0.0):
    """From `fit`, whose slopes serve as long as they hold."""
    prior, radius, failures = problem.prior, FIRST_RADIUS, 0
    value = objective(prior, weights, fit.residuals, fit.x)
    for _ in range(MOST_STEPS):
        to, promised = solve(prior, weights, fit, radius)
        if value - promised >= ENOUGH and failures < MOST_FAILURES:
            residuals = problem.residuals(to, weights > 0, fit.residuals)
            reached = objective(prior, weights, residuals, to)
            if reached < value:
                fit, value, failures = fit._replace(x=to, residuals=residuals), reached, 0
            else:
                radius = np.max(np.abs(to - fit.x)) / 4
                failures += 1
            continue
        if not moved(fit, fit.x, weights, slopes_hold).any():
            break
        # Nothing to gain by these slopes; others may show more.
        stale = moved(fit, fit.x, weights, slopes_hold / 3)
        fit = fit._replace(slopes=np.where(stale[:, None], problem.slopes(fit.x, stale), fit.slopes), slopes_at=fit.x)
        radius, failures = FIRST_RADIUS, 0
    return fit


def fit_all(problem, weights):
    """From the priors."""
    x = problem.prior.centre
    everyone = np.ones(len(weights), bool)
    start = Fit(x, problem.residuals(x, everyone), problem.slopes(x, everyone), x)
    return descend(problem, weights, start)


def at_rest(prior, weights, fit):
    """The fit to all as it serves fits without some rows: the linear objective is tilted so that it is least there. A fit
    stops where steps that slopes promise gain nothing in truth; what moves it now is what is left out, and that alone."""
    return fit._replace(tilt=gradient(prior, weights, fit.residuals, fit.slopes, fit.x))


def fit_without(problem, weights, full):
    """From the fit to all (at_rest) and by its slopes, for weights that leave out some rows: predicts nothing as long as
    the slopes hold."""
    to, _ = solve(problem.prior, weights, full, np.inf)
    if not moved(full, to, weights, SLOPES_HOLD).any():
        return to
    return descend(problem, weights, full._replace(tilt=0.0), SLOPES_HOLD).x


def standard_errors(prior, weights, fit):
    """Of x by what the rows resolve (Laplace noise of their mean absolute residual) and the prior, ignoring that the
    model may be wrong."""
    scale = max(weights @ np.abs(fit.residuals) / weights.sum(), RESOLVED)
    information = np.diag(prior.spread**-2.0) + fit.slopes.T @ (weights[:, None] * fit.slopes) / scale**2
    return np.sqrt(np.diag(np.linalg.inv(information)))
