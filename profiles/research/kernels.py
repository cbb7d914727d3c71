# SPDX-License-Identifier: Apache-2.0
"""Constants of single kernels (fitted/gpu_cost.json) from published tables of their times.

Minimized is the mean |log(predicted / measured)|: least absolute deviations shrug off disturbed rows, logarithms make a
microsecond kernel count like a second one. Objectives are piecewise smooth (minima over tiles, switches of protocols), so
slopes say little: Nelder and Mead's method on logarithms, begun anew from its own result until that no longer helps.
Valleys are flat there: the constants that ship are kept unless others fit better by more than BETTER.

Held out: rows fall into five folds by a hash of what they measured, so the split stays when rows are added; each fold is
predicted by a fit to the others.
"""
from __future__ import annotations

import collections
import copy

import numpy as np
from scipy.optimize import minimize

from profiles.research import product

BETTER = 0.002  # of the objective
RESOLVED = 0.004  # of an error: how far fits of a fold that end elsewhere move it
FOLDS = 5


def fold_of(*numbers, folds=FOLDS):
    """FNV-1a of whole numbers, well mixed in the low bits."""
    value, mask = 14695981039346656037, (1 << 64) - 1
    for number in numbers:
        for byte in (int(number) & mask).to_bytes(8, "little"):
            value = (value ^ byte) * 1099511628211 & mask
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & mask
    return (value ^ value >> 33) % folds


def least_of(objective, start, most_evaluations):
    """(values, objective) of the minimum over positive values."""
    in_logs = lambda logs: objective(np.exp(logs))
    at, step, idle, left = np.log(start), 0.3, 0, most_evaluations
    value = in_logs(at)
    while left > 0 and idle < 3:
        simplex = np.vstack([at, at + step * np.eye(len(at))])
        found = minimize(in_logs, at, method="Nelder-Mead",
                         options={"adaptive": len(at) > 1, "initial_simplex": simplex, "maxfev": left, "xatol": 1e-5, "fatol": 1e-9})
        left -= found.nfev
        idle = 0 if found.fun < value * (1 - 1e-6) else idle + 1
        if found.fun < value:
            at, value = found.x, found.fun
        step = 0.3 if abs(step) * 0.7 < 0.02 else -0.7 * step  # the next simplex points the other way and is smaller
    return np.exp(at), value


class Table:
    """Rows of one GPU and what is fitted to them. A subclass says what a row is and what is minimized."""

    paths = ()  # of the fitted values, in gpu_cost.json's words
    evaluations = 3000
    pull = staticmethod(lambda values: 0.0)
    starts = ()
    limits = ()  # by place, above which a value means nothing

    def __init__(self, gpu, rows):
        self.gpu, self.rows = gpu, rows
        self.measured = np.array([row["time_s"] for row in rows])
        self.weights = np.array([row.get("weight", 1.0) for row in rows])
        self.folds = np.array([row["fold"] for row in rows])
        self.kernels = []  # (places of rows, Kernels)

    def add(self, kind, shapes, places=None):
        if len(shapes):
            places = np.arange(len(self.rows)) if places is None else np.array(places)
            self.kernels.append((places, product.Kernels(kind, self.gpu, shapes, self.paths)))

    def bounded(self, values):
        return np.minimum(values, self.limits) if len(self.limits) else values

    def times(self, values):
        seconds = np.empty(len(self.rows))
        for places, kernels in self.kernels:
            seconds[places] = kernels(self.bounded(values))
        return seconds

    def objective(self, values, training):
        with np.errstate(all="ignore"):
            off = np.abs(np.log(self.times(values) / self.measured))
        weights = self.weights * training
        value = weights @ off / weights.sum() + self.pull(values)
        return value if np.isfinite(value) else 1e300

    def fit(self, training):
        found = [least_of(lambda values: self.objective(values, training), start, self.evaluations) for start in self.starts]
        values, _ = min(found, key=lambda one: one[1])
        return np.array([product.rounded(value, 4) for value in self.bounded(values)])

    def errors(self, values):
        return np.abs(self.times(values) / self.measured - 1)

    def held_out(self):
        errors = np.zeros(len(self.rows))
        for fold in range(FOLDS):
            out = self.folds == fold
            if out.any() and not out.all():
                errors[out] = self.errors(self.fit(~out))[out]
        return errors

    def everyone(self):
        return np.ones(len(self.rows), bool)

    def kept(self, shipped):
        """The values that ship, or those of a new fit where it is better."""
        shipped, found = np.array(shipped, float), self.fit(self.everyone())
        old, new = (self.objective(values, self.everyone()) for values in (shipped, found))
        return shipped if old <= new * (1 + BETTER) else found

    def counted(self):
        """Rows that errors are told of."""
        return self.everyone()


class Gemms(Table):
    """Products of training size weigh four times the rest. Rows that the table itself contradicts (a product at least as
    large took less than 1/1.1 of the time) are not fitted to, but count in the errors."""

    paths = tuple(f"gemm.{name}" for name in ("t0_s", "e", "k0", "w", "s", "split_k_s", "throttle", "throttle_s"))
    evaluations = 2500
    limits = (np.inf, 1.5, np.inf, 1.0, 2.0, np.inf, np.inf, np.inf)
    # Hard and soft waves are two valleys; both are searched.
    starts = tuple((2.5e-6, 0.9, 200, wave, 0.1, 2e-6, 0.05, 1e-3) for wave in (0.9, 0.2))

    def __init__(self, gpu, rows):
        sizes = np.array([[int(row[name]) for name in "mnk"] for row in rows])
        times = np.array([float(row["time_us"]) * 1e-6 for row in rows])
        self.training_size = (sizes[:, 0] >= 2048) & (sizes[:, 1] >= 1024) & (sizes[:, 2] >= 1024)
        larger = np.all(sizes[None, :, :] >= sizes[:, None, :], axis=2)
        self.contradicted = np.any(larger & (times[None, :] < times[:, None] / 1.1), axis=1)
        super().__init__(gpu, [
            {"time_s": time, "fold": fold_of(*size), "weight": 0.0 if wrong else 1.0 if large else 0.25}
            for size, time, large, wrong in zip(sizes, times, self.training_size, self.contradicted)])
        self.add("gemm", sizes)

    @staticmethod
    def pull(values):
        """Keeps values that the rows do not determine where they mean something."""
        return 1e-5 * (np.log(values[7] / 1e-3) ** 2 + np.log(values[5] / 2e-6) ** 2) + 1e-3 * max(0.0, values[3] - 1)

    def counted(self):
        return self.training_size


class Collectives(Table):
    """One set of values serves all collectives on any number of ranks: what differs is the number of steps, the bytes on
    the wire and the rank's own part, which are known. A faint pull towards NCCL's own table keeps values that the rows do
    not determine physical; what huge messages reach is published, lies beyond the tables, and is held tightly."""

    evaluations = 60000
    FITTED = ("ll.base_s", "ll.hop_s", "ll_channel_bytes_per_s", "ll_spread_s", "ll.bytes_per_s", "ll128.base_s", "ll128.hop_s",
              "ll128.bytes_per_s", "simple.base_s", "simple.hop_s", "simple.bytes_per_s", "simple_sqrt_s",
              "gather_copy_bytes_per_s", "reduce_copy_bytes_per_s")
    # Rings of eight reach 0.96 to 0.99 of NCCL's nominal rate at 8 GiB and more; the step that copies a rank's own part
    # takes the difference.
    RING_OVER_NOMINAL = 1.03

    def __init__(self, gpu, rows, costs):
        if any(int(row["nodes"]) != 1 for row in rows):
            raise product.Refused("collectives.csv has rows on several nodes, expected one node for a fit")
        own, nccl = costs["gpus"][gpu]["collectives"]["values"], costs["nccl"]["values"]
        fitted = self.FITTED + (("nvls_simple.base_s", "nvls_simple.bytes_per_s") if own["nvls"] else ())
        self.paths = tuple(f"collectives.{name}" for name in fitted)
        bus, base, hop = own["nominal_bytes_per_s"], nccl["ring_base_s"], nccl["ring_nvlink_hop_s"]
        centre = [base[0], hop[0], 0.03 * bus, 2e-6, 0.4 * bus, base[1], hop[1], 0.7 * bus, base[2], hop[2],
                  self.RING_OVER_NOMINAL * bus, 5e-9, 3 * bus, 3 * bus]
        centre += [60e-6, own["nominal_nvls_bytes_per_s"]] if own["nvls"] else []
        tight = [name in ("simple.bytes_per_s", "nvls_simple.bytes_per_s") for name in fitted]
        weights = np.where(tight, 2.0, 2e-4)
        self.starts = (centre,)
        self.pull = lambda values: weights @ np.log(np.asarray(values) / centre) ** 2
        order = ("all_gather", "reduce_scatter", "all_reduce", "broadcast")
        super().__init__(gpu, [{"time_s": float(row["time_us"]) * 1e-6,
                                "fold": fold_of(int(row["gpus"]), order.index(row["collective"]), int(float(row["total_bytes"])))}
                               for row in rows])
        for kind in sorted({row["collective"] for row in rows}):
            places = [i for i, row in enumerate(rows) if row["collective"] == kind]
            self.add(kind, [[int(rows[i]["gpus"]), float(rows[i]["total_bytes"])] for i in places], places)


class Dispatches(Table):
    """Kernels that send a token once to each rank, by SMs."""

    paths = tuple(f"dispatch.{name}" for name in ("t0_s", "token_s", "sm_bytes_per_s", "link_bytes_per_s"))
    starts = ((5e-5, 4e-7, 2.2e10, 3e11),)

    def __init__(self, gpu, rows):
        shapes = [[float(row["tokens"]), float(row["hidden"]) * float(row["element_bytes"]), int(row["topk"]),
                   int(row["experts"]), int(row["ranks"]), int(row["sms"])] for row in rows]
        super().__init__(gpu, [{"time_s": float(row["time_us"]) * 1e-6, "fold": fold_of(*shape)}
                               for row, shape in zip(rows, shapes)])
        self.add("dispatch", shapes)


class Exchanges(Table):
    """NCCL's all-to-all."""

    paths = tuple(f"exchange.{name}" for name in ("base_s", "sqrt_s", "bytes_per_s"))
    starts = ((1e-5, 6e-9, 3e11),)

    def __init__(self, gpu, rows):
        shapes = [[int(row["gpus"]), float(row["total_bytes"])] for row in rows]
        super().__init__(gpu, [{"time_s": float(row["time_us"]) * 1e-6, "fold": fold_of(1, bytes, 1, 1, ranks, 0)}
                               for row, (ranks, bytes) in zip(rows, shapes)])
        self.add("exchange", shapes)


class Attention(Table):
    """rate(s) = R s / (s + s0) of one kernel, forward and backward, at head size 128 with a causal mask. Rows of both passes
    together are split by the forward that was fitted before. A pass with fewer than LEAST rows keeps what ships; backward
    alone without rows keeps its ratio to forward."""

    evaluations = 4000
    BACKWARD_FLOPS = 2.5  # over forward's
    LEAST = 4  # one more than a held-out fit of two values needs

    def __init__(self, gpu, kernel, rows, shipped):
        self.paths = tuple(f"attention.{kernel}.{name}" for name in ("forward_flops", "forward_s0", "backward_flops", "backward_s0"))
        passes = np.array([row["pass"] for row in rows])
        self.passes, self.shipped = (passes == "forward", passes != "forward"), np.array(shipped, float)
        shares = np.array([{"forward": (1, 0), "backward": (0, 1), "forward+backward": (1, 1)}[one] for one in passes], float)
        lengths = np.array([float(row["seq_len"]) for row in rows])
        flops = 2.0 * lengths**2 * 128 * (shares @ (1, self.BACKWARD_FLOPS))
        rates = np.array([float(row["tflops"]) * 1e12 for row in rows])
        super().__init__(gpu, [{"time_s": time, "fold": 0} for time in flops / rates])
        self.highest, self.shares = rates.max(), shares.T
        self.of_pass = [product.Kernels(f"attention.{kernel}", gpu, np.column_stack([lengths, np.full(len(rows), backward)]),
                                        self.paths) for backward in (0.0, 1.0)]

    def times(self, values):
        return sum(share * kernels(values) for share, kernels in zip(self.shares, self.of_pass))

    def fitted(self, training, least=LEAST):
        return [bool(np.sum(own & training) >= least) for own in self.passes]

    def of_one_pass(self, values, place, training):
        with np.errstate(all="ignore"):
            off = np.abs(np.log(self.times(values) / self.measured))
        # Tables that begin at long sequences leave s0 open; 800 tokens is what complete ones give.
        value = off @ (self.passes[place] & training) + 1e-2 * np.log(values[2 * place + 1] / 800) ** 2
        return value if np.isfinite(value) else 1e300

    def objective(self, values, training):
        return sum(self.of_one_pass(values, place, training) for place, of in enumerate(self.fitted(training)) if of)

    def fit(self, training, least=LEAST):
        values, fitted = self.shipped.copy(), self.fitted(training, least)
        for place in (0, 1):
            if not fitted[place]:
                continue
            at = slice(2 * place, 2 * place + 2)

            def objective(pair):
                values[at] = pair
                return self.of_one_pass(values, place, training)

            (rate, s0), _ = least_of(objective, (1.05 * self.highest, 600), self.evaluations)
            values[at] = product.rounded(rate, 4), product.rounded(s0, 3)
        if fitted == [True, False]:
            values[2] = product.rounded(values[0] * self.shipped[2] / self.shipped[0], 4)
        return values

    def counted(self):
        return np.any([own & of for own, of in zip(self.passes, self.fitted(self.everyone()))], axis=0)

    def held_out(self):
        errors = np.zeros(len(self.rows))
        for i in np.flatnonzero(self.counted()):
            training = np.arange(len(self.rows)) != i
            errors[i] = self.errors(self.fit(training, self.LEAST - 1))[i]
        return errors

    def words(self):
        return {(True, True): "forward and backward", (True, False): "forward; backward by ratio"}.get(
            tuple(self.fitted(self.everyone())), "backward")


def by(table, *columns):
    """The rows of a table by what they have in these columns."""
    groups = collections.defaultdict(list)
    for row in product.read_table(table):
        groups[tuple(row[column] for column in columns)].append(row)
    return sorted(groups.items())


def refit(name, where, sets, table, source, date):
    """Brings a set of values up to date in place; it stays as it is, to the byte, where nothing moved. True: it moved."""
    keys = [path.split(".")[-1] if name != "collectives" else path.split(".", 1)[1] for path in table.paths]
    place = lambda key: (sets["values"][key.split(".")[0]], key.split(".")[1]) if "." in key else (sets["values"], key)
    shipped = [place(key)[0][place(key)[1]] for key in keys]
    values = table.kept(shipped)
    counted = table.counted()
    new = {"in_sample": product.error_summary(table.errors(values)[counted]),
           "held_out": product.error_summary(table.held_out()[counted])}
    print(f"{name} {where}")
    for words, errors in new.items():
        print(f"  {words:<10} {product.words_of(errors)}")
    same = list(values) == list(shipped) and all(
        sets.get(words, {}).get("n") == errors["n"]
        and all(abs(errors[of] - sets[words][of]) <= RESOLVED for of in ("mape", "median")) for words, errors in new.items())
    if same:
        return False
    for key, value in zip(keys, values):
        place(key)[0][place(key)[1]] = float(value)
    apart = sets.pop("apart", None)
    for key in ("source", "confidence", "analogue_of", "command", "date", "in_sample", "held_out"):
        sets.pop(key, None)
    sets.update({"source": source, "confidence": "fitted", "command": f"{product.COMMAND} {name}", "date": date} | new)
    if apart:
        sets["apart"] = apart
    print(f"  moved: {', '.join(f'{key} {a:g} -> {b:g}' for key, a, b in zip(keys, shipped, values) if a != b) or 'errors alone'}")
    return True


def copy_to_analogues(costs, name, gpu, own):
    """GPUs that repeat a fitted one follow it, and keep what is their own."""
    fitted = costs["gpus"][gpu][name]["values"]
    for cost in costs["gpus"].values():
        if cost[name].get("analogue_of") == gpu:
            kept = {key: cost[name]["values"][key] for key in own if key in cost[name]["values"]}
            cost[name]["values"] = {key: fitted[key] for key in cost[name]["values"] if key in fitted} | kept


def fit_gemm(costs, date):
    for (gpu,), rows in by("gemm", "gpu"):
        refit("gemm", gpu, costs["gpus"][gpu]["gemm"], Gemms(gpu, rows),
              "published/gemm.csv (aiconfigurator, NVIDIA); errors of m >= 2048 and n, k >= 1024, disturbed rows included; "
              "sustained_factor from published long runs", date)
        copy_to_analogues(costs, "gemm", gpu, ["sustained_factor"])


def fit_collectives(costs, date):
    for (gpu,), rows in by("collectives", "gpu"):
        refit("collectives", gpu, costs["gpus"][gpu]["collectives"], Collectives(gpu, rows, costs),
              "published/collectives.csv (nccl-tests in aiconfigurator, NVIDIA); nominal rates from NVIDIA/nccl v2.28.9-1, "
              "except B200's LL128 cap inside a node, set where the table switches to Simple; NVLS ceiling from "
              "stas00/ml-engineering and Azure/AI-benchmarking-guide", date)
        copy_to_analogues(costs, "collectives", gpu, ["nvls", "usual_net_bytes_per_s"])


def fit_attention(costs, date):
    for (gpu, kernel), rows in by("attention", "gpu", "kernel"):
        rows = [row for row in rows if row["head_dim"] == "128" and row["causal"] == "1"]
        sets = costs["gpus"][gpu]["attention"].get(kernel)
        if sets is None:
            raise product.Refused(f"attention.csv: {gpu} has no kernel '{kernel}' to fit, expected one of gpu_cost.json")
        table = Attention(gpu, kernel, rows, [sets["values"][f"{way}_{of}"] for way in ("forward", "backward") for of in ("flops", "s0")])
        if not any(table.fitted(table.everyone())):
            continue
        refit("attention", f"{gpu} {kernel}", sets, table,
              f"published/attention.csv, {table.words()}; other head sizes are estimates", date)
        for cost in costs["gpus"].values():
            other = cost["attention"].get(kernel)
            if other and other.get("analogue_of") == gpu:
                other["values"] = dict(sets["values"])


def fit_dispatch(costs, date):
    for (gpu,), rows in by("dispatch", "gpu"):
        refit("dispatch", gpu, costs["gpus"][gpu]["dispatch"], Dispatches(gpu, rows),
              "published/dispatch.csv (DeepEP in one node, aiconfigurator, NVIDIA)", date)
    for (gpu,), rows in by("exchange", "gpu"):
        refit("dispatch", gpu, costs["gpus"][gpu]["exchange"], Exchanges(gpu, rows),
              "published/exchange.csv (nccl-tests in aiconfigurator, NVIDIA)", date)


FITS = {"gemm": fit_gemm, "collectives": fit_collectives, "attention": fit_attention, "dispatch": fit_dispatch}


def fit(name, date, to=product.DATA):
    costs = product.read_fitted("gpu_cost")
    before = copy.deepcopy(costs)
    FITS[name](costs, date)
    if costs != before:
        product.write_text(to / "fitted/gpu_cost.json", product.text_of(costs))
