# SPDX-License-Identifier: Apache-2.0
"""Constants that only the steps of training runs show (fitted/step_parameters.json), and how good they are.

Iteration times of published/ledger.csv are fitted by robust.py, from the priors: the result depends on the ledger, the
simulator and the priors only. Then every run is predicted by constants fitted without it, without its cell (what its source
ran of its model on its GPU) and without its source, from the fit to all and by its slopes. fitted/residuals.json records
that: `validate --leave-one-out` shows it, and widths of intervals are made of it (conformal.py). The interval of a constant
is the wider of what the rows resolve and of a jackknife that leaves out groups of rows, which also sees that the model is
wrong in places. What no fit can show is that the simulator was written by people who had read these tables.
"""
from __future__ import annotations

import collections
import copy
import functools
import json
import math
import pathlib
import re

import numpy as np

from profiles.research import conformal, kernels, product, robust

LEVEL = 0.9
GROUPS = 20  # of the jackknife
STUDENT = 1.729  # 95 %, with GROUPS - 1 degrees of freedom: an interval at LEVEL
# Of the errors of two runs of one source; 0 would count every run alike. Assumed, and chosen among several values with
# their errors on the same ledger in view (published/README.md, How good the predictions are).
CORRELATION_IN_SOURCE = 0.05
SOURCE = "iteration times of published/ledger.csv"
COMMAND = f"{product.COMMAND} steps"
CLOCK = "cost.gemm.sustained_factor"


def with_value(text, path, value, origin):
    """`text` of a cluster or a stack with the value at `path` replaced: files hold one value a line, so that a diff shows
    exactly what changed. `origin` replaces its source, confidence and date."""
    begin = 0
    for depth, key in enumerate(path.split("."), 1):
        begin = text.find(f'\n{"  " * depth}"{key}": {{', begin)
        if begin < 0:
            raise product.Refused(f'{path} is not on a line of its own, expected "{key}": {{"value": ..}} there')
        begin = text.index("{", begin)
    line = text[begin:text.index("\n", begin)].rstrip(",")
    values = json.loads(line) | {"value": value} | origin
    return text[:begin] + json.dumps(values, ensure_ascii=False) + text[begin + len(line):]


class Constants:
    """The values of step_parameters.json in all files that hold them."""

    def __init__(self, document):
        self.document = copy.deepcopy(document)
        self.list = self.document["parameters"]
        self.names = [parameter["name"] for parameter in self.list]
        column = lambda of: np.log([of(parameter) for parameter in self.list])
        self.prior = robust.Prior(column(lambda p: p["prior"]["value"]), np.array([p["prior"]["spread"] for p in self.list]),
                                  column(lambda p: p["bounds"][0]), column(lambda p: p["bounds"][1]))

    def _set_costs(self, costs, parameter, path, value, provenance):
        for gpu in parameter["applies_to"]["gpu"]:
            *group, key = path.split(".")[1:]
            sets = costs["gpus"][gpu]
            for name in group:
                sets = sets[name]
            sets["values"][key] = value
            if provenance:
                sets.setdefault("apart", {})[key] = provenance
                sets["apart"] = dict(sorted(sets["apart"].items()))
            for other in costs["gpus"].values():  # kernels that are said to be those of this GPU follow it
                kernel = other["attention"].get(group[1]) if group[0] == "attention" else None
                if kernel and kernel.get("analogue_of") == gpu:
                    kernel["values"][key] = value

    def write(self, values, data, to=None, provenance=None):
        """Sets `values` in the files of the data folder `data`, but for those that are None; written are those of `to`.
        Constants that only some sources see stand in step_parameters.json alone. `provenance(place)` is what a fit says of itself, or None."""
        to = to or data
        costs = json.loads((data / "fitted/gpu_cost.json").read_text(encoding="utf-8"))
        texts = {}
        for place, (parameter, value) in enumerate(zip(self.list, values)):
            if parameter.get("sources") or value is None:
                continue
            said = provenance(place) if provenance else None
            for path, times in parameter["targets"].items():
                if "gpu" in parameter["applies_to"]:
                    number = product.rounded(times * value, 5) if said else times * value
                    self._set_costs(costs, parameter, path, number, said and said["cost"])
                    continue
                (scope, names), = parameter["applies_to"].items()
                for name in names:
                    file = f"{scope}s/{name}.json"
                    text = texts.get(file) or (data / file).read_text(encoding="utf-8")
                    texts[file] = with_value(text, path.split(".", 1)[1], times * value, said["file"] if said else {})
        spelt = product.text_of if provenance else json.dumps  # what is only asked once need not be read by people
        texts["fitted/gpu_cost.json"] = spelt(costs)
        document = copy.deepcopy(self.document)
        if not provenance:  # on the way a value may leave its bounds
            for parameter, value in zip(document["parameters"], values):
                parameter["bounds"] = [value / 4, value * 4]
                parameter["prior"]["value"] = value
                errors = product.error_summary([])
                parameter["fitted"] = {"value": value, "interval": [value, value], "in_sample": errors, "held_out": errors}
        texts["fitted/step_parameters.json"] = spelt(document)
        for file, text in texts.items():
            product.write_text(to / file, text)


class Ledger:
    """Residuals of the ledger's runs as a function of the constants, each by `validate` itself."""

    def __init__(self, rows, constants, scratch):
        self.constants, self.data, self.prior = constants, scratch.path, constants.prior
        self.predictions = 0
        self.rows = rows
        known = product.log_errors(self._validate(self.prior.centre, rows))
        self.rows = [row for row in rows if row["id"] in known]
        self.sees = None

    def _validate(self, x, rows):
        self.constants.write(np.exp(x), self.data)
        self.predictions += len(rows)
        return product.validate(rows, data=self.data)

    def predict(self, x, which):
        """log(predicted / measured) of the runs at the places `which`."""
        found = product.log_errors(self._validate(x, [self.rows[i] for i in which]))
        return np.array([found[self.rows[i]["id"]] for i in which])

    def residuals(self, x, which, others=None):
        """Of the runs that `which` picks (an array of truths); of the rest what `others` says."""
        result = np.zeros(len(self.rows)) if others is None else others.copy()
        picked = np.flatnonzero(which)
        result[picked] = self.predict(x, picked)
        return result

    def slopes(self, x, which):
        slopes = np.zeros((len(self.rows), len(x)))
        for j in range(len(x)):
            to = lambda step: np.where(np.arange(len(x)) == j, x + step, x)
            picked = np.flatnonzero(which if self.sees is None else which & self.sees[:, j])
            if len(picked):
                apart = self.predict(to(robust.DIFFERENCE), picked) - self.predict(to(-robust.DIFFERENCE), picked)
                slopes[picked, j] = apart / (2 * robust.DIFFERENCE)
        if self.sees is None:
            self.sees = slopes != 0
        return slopes

    def weights(self):
        """By Kish's design effect: runs of one source share part of their error, so n of them tell as much as
        n / (1 + (n - 1) CORRELATION_IN_SOURCE) independent ones; mean 1."""
        runs_of = collections.Counter(row["source"] for row in self.rows)
        weights = np.array([1 / (1 + (runs_of[row["source"]] - 1) * CORRELATION_IN_SOURCE) for row in self.rows])
        return weights * len(weights) / weights.sum()


@functools.cache
def strategies():
    """In the product's order."""
    text = (product.ROOT / "sim/core/strategies.def").read_text(encoding="utf-8")
    return re.findall(r'^STRATEGY\(k\w+, "([^"]+)"', text, re.MULTILINE)


def group_of(row):
    """Of the jackknife, by what the run did."""
    numbers = ("gpus", "seq_len", "micro_batch", "grad_accum", "ckpt_layers", "layers", "hidden")
    return kernels.fold_of(strategies().index(row["strategy"]), *(int(row[key]) for key in numbers), folds=GROUPS)


def jackknife(ledger, weights, full):
    """Standard errors of x from fits that each leave out one group of rows."""
    groups = np.array([group_of(row) for row in ledger.rows])
    fits = np.array([robust.fit_without(ledger, np.where(groups == group, 0, weights), full) for group in range(GROUPS)])
    return np.sqrt(np.sum((fits - fits.mean(axis=0)) ** 2, axis=0) * (GROUPS - 1) / GROUPS)


def leave_out(ledger, weights, full, key):
    """(residuals, constants) of every run by a fit without the runs of its key."""
    residuals, found = np.zeros(len(ledger.rows)), []
    keys = [key(row) for row in ledger.rows]
    for one in sorted(set(keys)):
        out = np.array([other == one for other in keys])
        x = robust.fit_without(ledger, np.where(out, 0, weights), full)
        residuals = ledger.residuals(x, out, residuals)
        found.append(x)
    return residuals, np.array(found)


class Fitted:
    """The fit to the runs of a ledger, with everything that is recorded of it."""

    def __init__(self, rows, document, scratch, date):
        self.constants, self.date = Constants(document), date
        self.ledger = ledger = Ledger(rows, self.constants, scratch)
        weights = ledger.weights()
        self.full = robust.at_rest(ledger.prior, weights, self._kept(robust.fit_all(ledger, weights), weights))
        resolved = robust.standard_errors(ledger.prior, weights, self.full)
        self.margin = STUDENT * np.maximum(resolved, jackknife(ledger, weights, self.full))
        run_out, self.run_out = leave_out(ledger, weights, self.full, lambda row: row["id"])
        cell_out, _ = leave_out(ledger, weights, self.full, lambda row: (row["source"], row["gpu"], row["model"]))
        source_out, self.source_out = leave_out(ledger, weights, self.full, lambda row: row["source"])
        self.errors = {"log_error_fitted": ledger.residuals(self.full.x, np.ones(len(ledger.rows), bool)),
                       "log_error": run_out, "log_error_cell_out": cell_out, "log_error_source_out": source_out}

    def _kept(self, found, weights):
        """The constants that ship, where the fit found none that are better by more than it stops at."""
        shipped = [parameter.get("fitted", {}).get("value") for parameter in self.constants.list]
        if None in shipped:
            return found
        x = np.log(shipped)
        residuals = self.ledger.residuals(x, np.ones(len(weights), bool))
        gained = (robust.objective(self.ledger.prior, weights, residuals, x)
                  - robust.objective(self.ledger.prior, weights, found.residuals, found.x))
        return found if gained > robust.ENOUGH else found._replace(x=x, residuals=residuals)

    def error_summary(self, which, seen=None):
        errors = np.abs(np.expm1(self.errors[which]))
        return product.error_summary(errors if seen is None else errors[seen])

    def parameters(self):
        """step_parameters.json with what was found."""
        document = copy.deepcopy(self.constants.document)
        for j, parameter in enumerate(document["parameters"]):
            seen = self.ledger.sees[:, j]
            low, high = parameter["bounds"]
            bounded = lambda log: product.rounded(min(max(math.exp(log), low), high), 4)
            parameter.pop("fitted", None)
            if not seen.any():
                continue
            x, margin = self.full.x[j], self.margin[j]
            parameter["fitted"] = {"value": bounded(x), "interval": [bounded(x - margin), bounded(x + margin)],
                                   "in_sample": self.error_summary("log_error_fitted", seen),
                                   "held_out": self.error_summary("log_error", seen)}
        document["fit"] = {"source": SOURCE, "command": COMMAND, "date": self.date, "interval_level": LEVEL,
                           "in_sample": self.error_summary("log_error_fitted"), "held_out": self.error_summary("log_error"),
                           "source_held_out": self.error_summary("log_error_source_out")}
        return document

    def runs(self):
        similar = json.loads((product.DATA / "similar_stacks.json").read_text(encoding="utf-8"))["similar"]
        return [{"id": row["id"], "source": row["source"], "stack": similar.get(row["stack"], row["stack"]),
                 "gpu": row["gpu"], "model": row["model"]}
                | {name: round(float(of[i]), 5) for name, of in self.errors.items()}
                for i, row in enumerate(self.ledger.rows)]

    def chips(self):
        """GPUs whose clock is one constant of this fit, whoever runs them, by the first of them."""
        chips = {}
        for parameter in self.constants.list:
            if CLOCK in parameter["targets"] and not parameter.get("sources"):
                for gpu in parameter["applies_to"]["gpu"]:
                    chips.setdefault(gpu, parameter["applies_to"]["gpu"][0])
        return chips

    def residuals(self, rows, data):
        """residuals.json; peaks are predicted by the files of the folder `data`."""
        runs, chips = self.runs(), self.chips()
        for run, inside in zip(runs, conformal.inside(runs, LEVEL, chips)):
            run["inside"] = [bool(one) for one in inside]
        stacks = {run["id"]: run["stack"] for run in runs}
        errors = product.log_errors(product.validate(rows, data=data), "memory_error")
        peaks = [{"id": row["id"], "source": row["source"], "stack": row["stack"], "log_error": -errors[row["id"]]}
                 for row in rows if row["id"] in errors]
        up = lambda sides: {name: math.ceil(width * 1e5) / 1e5 for name, width in sides.items()}
        covered = product.covered(self.ledger.rows)
        covered["seen"]["stack with measured memory"] = sorted({stacks.get(peak["id"], peak["stack"]) for peak in peaks})
        extent = lambda fits, j: [product.rounded(math.exp(log), 6) for log in (fits[:, j].min(), fits[:, j].max())]
        held = {name: np.vstack([of, self.full.x]) for name, of in (("run", self.run_out), ("source", self.source_out))}
        return {
            "schema": "shardwright.residuals/1.0",
            "source": f"{SOURCE}, each predicted by constants fitted without it",
            "command": COMMAND, "date": self.date, "level": LEVEL,
            "memory": {"runs": len(peaks), **up(conformal.memory_widths(peaks, LEVEL)),
                       "inside_run_out": conformal.memory_inside(peaks, LEVEL, "id"),
                       "inside_source_out": conformal.memory_inside(peaks, LEVEL, "source"),
                       "new_software": {"sources": len({peak["source"] for peak in peaks}),
                                        **up(conformal.memory_widths(peaks, LEVEL, "source"))}},
            "simulated_coverage": round(conformal.simulated_coverage(runs, LEVEL), 5),
            "ranges": covered["ranges"], "seen": dict(sorted(covered["seen"].items())),
            "constants": [{"name": parameter["name"], "value": product.rounded(math.exp(self.full.x[j]), 6),
                           "run_out": extent(held["run"], j), "source_out": extent(held["source"], j)}
                          for j, parameter in enumerate(self.constants.list) if self.ledger.sees[:, j].any()],
            "runs": runs,
        }

    def write(self, data, to):
        """Into every file that holds a constant, with where it comes from."""
        document = product.settled(self.constants.document, self.parameters())

        def provenance(place):
            parameter = document["parameters"][place]
            fitted, prior = parameter["fitted"], parameter["prior"]
            source = (f"{parameter['meaning']}; fitted to the {SOURCE} that see it, from a prior of {prior['value']:.4g}: "
                      f"{prior['source']}")
            return {"cost": {"source": source, "confidence": "fitted", "command": COMMAND, "date": self.date,
                             "in_sample": fitted["in_sample"], "held_out": fitted["held_out"]},
                    "file": {"source": f"{source}; {COMMAND}", "confidence": "inferred", "date": self.date}}

        written = Constants(document)
        written.write([parameter.get("fitted", {}).get("value") for parameter in written.list], data, to, provenance)


def fit(date, to=product.DATA, ledger=None):
    """Fits, writes what changes into the data folder `to` and says how good it is. With a `ledger` of somebody's own only
    what is left out is recorded, beside it, for `validate --ledger FILE --leave-one-out`."""
    rows = product.read_table(ledger or "ledger")
    with product.ScratchData() as scratch:
        shipped = product.read_fitted("step_parameters")
        fitted = Fitted(rows, shipped, scratch, date)
        if ledger is None:
            if product.settled(shipped, fitted.parameters()) == shipped:
                fitted.date = shipped["fit"]["date"]  # nothing moved
            fitted.write(product.DATA, scratch.path)
            fitted.write(product.DATA, to)
            product.write_fitted(to, "residuals", fitted.residuals(rows, scratch.path))
        else:
            record = pathlib.Path(f"{ledger}.left_out.json")
            product.write_text(record, product.text_of(fitted.residuals(rows, product.DATA)))
    for parameter in fitted.parameters()["parameters"]:
        if "fitted" in parameter:
            found = parameter["fitted"]
            print(f"{parameter['name']:<40} prior {parameter['prior']['value']:<10.4g} fitted {found['value']:<10.4g} "
                  f"{found['interval'][0]:.4g} to {found['interval'][1]:.4g}")
    for words, which in (("in sample", "log_error_fitted"), ("without the run", "log_error"),
                         ("without its cell", "log_error_cell_out"), ("without its source", "log_error_source_out")):
        print(f"{words:<20} {product.words_of(fitted.error_summary(which))}")
    for width in conformal.widths(fitted.runs(), LEVEL, fitted.chips()):
        print(f"{width['novelty']:<12} +-{width['half_width']:.1%} ({width['runs']} runs, {width['cells']} cells: {width['errors']})")
    return fitted
