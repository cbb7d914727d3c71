# SPDX-License-Identifier: Apache-2.0
"""The production factor (profiles/uncertainty/production.h) from published trainings (fitted/whole_runs.json).

log(published / ideal hours) = log_factor + small_model x (small model in a large job) + rest, by least squares over trainings
of tiers A and B since 2023, of which a family of n, who share a team and a code base, weighs sqrt(n). The interval is the
shortest that holds, of the rests of trainings whose whole family was left out, ceil(level (n + 1)), at the highest level in
whole percent, from 80 to 95, at which its ends differ by a factor of at most 3: wider would tell a buyer nothing. How often
that holds is found by leaving out each family once more, line, level and width anew.
"""
from __future__ import annotations

import collections
import math

import numpy as np

from profiles.research import product

FIRST = 2023  # software and networks were others before
WIDEST = 3  # upper over lower end
LEAST_FAMILIES = 3
LEAST_SPREAD = 1e-3  # of what a slope is fitted to


def ratio(run):
    return math.log(run["published_gpu_hours"] / run["ideal_gpu_hours"])


def line_of(runs):
    """(constant, slope), weighted least squares; the constant alone where the trainings do not tell a slope."""
    count = collections.Counter(run["family"] for run in runs)
    weights = np.array([1 / math.sqrt(count[run["family"]]) for run in runs])
    x, y = np.array([run["small_in_large"] for run in runs]), np.array([ratio(run) for run in runs])
    middle = np.average(x, weights=weights), np.average(y, weights=weights)
    xx = weights @ (x - middle[0]) ** 2
    slope = weights @ ((x - middle[0]) * (y - middle[1])) / xx if xx > LEAST_SPREAD * weights.sum() else 0.0
    return float(middle[1] - slope * middle[0]), float(slope)


def rest(run, line):
    return ratio(run) - line[0] - line[1] * run["small_in_large"]


def families(runs):
    """(runs of a family, all others) of each."""
    for family in sorted({run["family"] for run in runs}):
        yield [run for run in runs if run["family"] == family], [run for run in runs if run["family"] != family]


def rests_family_out(runs):
    return [rest(run, line) for own, others in families(runs) for line in [line_of(others)] for run in own]


def width_of(rests):
    """(level, (below, above)): at the highest level whose interval is narrow enough to be of use, else at the lowest."""
    rests = sorted(rests)
    result = 0.8, (max(0.0, -rests[0]), max(0.0, rests[-1]))
    for percent in range(95, 79, -1):
        kept = math.ceil(percent / 100 * (len(rests) + 1) - 1e-9)
        if kept > len(rests):
            continue
        ends = [(max(0.0, -rests[i]), max(0.0, rests[i + kept - 1])) for i in range(len(rests) - kept + 1)]
        result = percent / 100, min(ends, key=sum)
        if math.exp(sum(result[1])) <= WIDEST:
            break
    return result


def coverage(rests_and_widths):
    rests_and_widths = list(rests_and_widths)
    return {"n": len(rests_and_widths), "inside": sum(-below <= one <= above for one, (below, above) in rests_and_widths),
            "median_ratio": round(math.exp(float(np.median([abs(one) for one, _ in rests_and_widths]))), 4)}


def fitted(runs):
    """The factor, its interval, and how often it held."""
    if len({run["family"] for run in runs}) < LEAST_FAMILIES:
        raise product.Refused(f"the whole runs are of {len({run['family'] for run in runs})} families, expected at least "
                              f"{LEAST_FAMILIES}")
    line, (level, widths) = line_of(runs), width_of(rests_family_out(runs))
    left_out = ((rest(run, other_line), other_widths) for own, others in families(runs)
                for other_line, (_, other_widths) in [(line_of(others), width_of(rests_family_out(others)))] for run in own)
    steps = [run["step_half_width"] for run in runs if run["step_half_width"] > 0]
    extent = lambda name: [min(run[name] for run in runs), max(run[name] for run in runs)]
    return {
        "level": level, "log_factor": round(line[0], 4), "small_model": round(line[1], 4),
        "half_widths": [round(width, 4) for width in widths],
        "step_half_width": round(float(np.median(steps)), 4) if steps else 0.0,
        "ranges": {"parameters": extent("parameters"), "peak_flops": extent("peak_flops")},
        "coverage": {"in_sample": coverage((rest(run, line), widths) for run in runs), "family_left_out": coverage(left_out)},
    }


def fit(date, to):
    scored = [run for run in product.trainings() if run["scored"]]
    steady = [run["steady_mfu"] for run in scored if run["steady_mfu"]]
    if not steady:
        raise product.Refused("no whole run of tier A or B has a steady_mfu_6n, expected at least one")
    analytic = float(np.median(steady))
    runs = [run for run in product.trainings(analytic) if run["scored"] and run["year"] >= FIRST]
    reached = collections.defaultdict(list)
    for run in scored:
        reached[run["generation"]].append(run["whole_mfu"])
    gpus = sorted(run["gpus"] for run in runs if run["gpus"])
    found = fitted(runs)
    for run in runs:
        print(f"{run['id']:<24} ideal {run['ideal_gpu_hours']:>12.0f}   published {run['published_gpu_hours']:>12.0f}   "
              f"ratio {math.exp(ratio(run)):.2f}")
    below, above = found["half_widths"]
    print(f"whole / ideal = {math.exp(found['log_factor']):.3f}, slope of small models in large jobs {found['small_model']:.3f}; "
          f"interval of {found['level']:.0%}: x {math.exp(-below):.3f} to x {math.exp(above):.3f}")
    for words, of in found["coverage"].items():
        print(f"{words}: {of['inside']} of {of['n']} inside, half of them within a factor of {of['median_ratio']:.2f}")
    ranges, covered = found.pop("ranges"), found.pop("coverage")
    product.write_fitted(to, "whole_runs", {
        "schema": "shardwright.whole_runs/1.1", "source": "published/whole_runs.csv, tiers A and B",
        "command": f"{product.COMMAND} whole-runs", "date": date, **found, "analytic_mfu": round(analytic, 4), "ranges": ranges,
        "usual_gpus": float(max(1, gpus[len(gpus) // 2])), "coverage": covered,
        "mfu_reached": {generation: {"quartiles": [round(float(np.quantile(of, share)), 4) for share in (0.25, 0.5, 0.75)],
                                     "n": len(of)} for generation, of in sorted(reached.items())},
        "runs": [{key: run[key] for key in ("id", "family", "parameters", "peak_flops")}
                 | {"ideal_gpu_hours": float(round(run["ideal_gpu_hours"])), "step_half_width": round(run["step_half_width"], 4),
                    "published_gpu_hours": run["published_gpu_hours"]} for run in runs]})
