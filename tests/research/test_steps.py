# SPDX-License-Identifier: Apache-2.0
"""Step constants are found in runs whose constants are known, because the product itself predicted them."""
import json
import math

import numpy as np
import pytest

from profiles.research import product, robust, steps


def some_rows():
    """Runs of two sources on one GPU, of models that simulate quickly."""
    rows = [row for row in product.read_table("ledger") if row["gpu"] == "a100-80g" and row["iter_time_s"]
            and int(row["layers"]) <= 40 and row["stack"] in ("hf-eager", "mpt-eager")]
    return rows[::4]


def measured(rows, noise):
    """(rows as if measured on a machine with planted constants, those constants): half a spread from the priors."""
    random = np.random.default_rng(1)
    with product.ScratchData() as scratch:
        constants = steps.Constants(product.read_fitted("step_parameters"))
        ledger = steps.Ledger(rows, constants, scratch)
        prior = constants.prior
        signs = np.where(np.arange(len(prior.centre)) % 2, -0.5, 0.5)
        planted = np.clip(prior.centre + signs * prior.spread, prior.lower, prior.upper)
        off = ledger.residuals(planted, np.ones(len(ledger.rows), bool))
    return [row | {"iter_time_s": repr(float(row["iter_time_s"]) * math.exp(error + random.normal(0, noise))),
                   "tokens_per_gpu_s": ""} for row, error in zip(ledger.rows, off)], planted


def unfitted():
    document = product.read_fitted("step_parameters")
    for parameter in document["parameters"]:
        parameter.pop("fitted", None)
    return document


@pytest.fixture(scope="module")
def fitted():
    rows, planted = measured(some_rows(), 0.02)
    with product.ScratchData() as scratch:
        yield steps.Fitted(rows, unfitted(), scratch, "2026-01-01"), planted, scratch


def test_planted_constants_lie_within_their_intervals(fitted):
    fit, planted, _ = fitted
    document = fit.parameters()
    inside = []
    for parameter, truth in zip(document["parameters"], np.exp(planted)):
        if "fitted" not in parameter:
            continue
        found, (low, high) = parameter["fitted"]["value"], parameter["fitted"]["interval"]
        assert low <= found <= high
        inside.append(low <= truth <= high)
        assert inside[-1] or abs(np.log(found / truth)) < abs(np.log(parameter["prior"]["value"] / truth)), parameter["name"]
    assert len(inside) >= 6 and sum(inside) + 1 >= len(inside)  # at a level of 0.9
    errors = document["fit"]
    assert errors["in_sample"]["mape"] < 0.03 and errors["held_out"]["mape"] < 0.035


def test_no_run_is_predicted_by_a_fit_that_saw_it(fitted):
    fit, _, _ = fitted
    ledger = fit.ledger
    weights = ledger.weights()
    weights[3] = 0
    far = fit.full._replace(residuals=fit.full.residuals + np.where(np.arange(len(weights)) == 3, 0.4, 0))
    assert robust.fit_without(ledger, weights, far) == pytest.approx(robust.fit_without(ledger, weights, fit.full), abs=1e-6)
    assert fit.errors["log_error_source_out"] != pytest.approx(fit.errors["log_error_fitted"], abs=1e-3)


def test_values_reach_every_file_that_holds_them(fitted):
    fit, _, scratch = fitted
    fit.write(product.DATA, scratch.path)
    costs = json.loads((scratch.path / "fitted/gpu_cost.json").read_text())
    document = fit.parameters()
    values = {parameter["name"]: parameter.get("fitted", {}).get("value") for parameter in document["parameters"]}
    for gpu in ("a100-80g", "a100-40g"):
        gemm = costs["gpus"][gpu]["gemm"]
        assert gemm["values"]["sustained_factor"] == values["sustained clocks, A100"]
        assert gemm["apart"]["sustained_factor"]["command"] == steps.COMMAND
    cluster = json.loads((scratch.path / "clusters/a100-80g-4xhdr200.json").read_text())
    assert cluster["nic_efficiency"]["value"] == values["network efficiency, YaFSDP cluster"]
    assert cluster["nic_efficiency"]["date"] == "2026-01-01"
    # What only some sources see stays with the constant.
    assert (scratch.path / "stacks/hf-eager.json").read_text() == (product.DATA / "stacks/hf-eager.json").read_text()


def test_one_value_of_a_file_changes_and_nothing_else():
    text = (product.DATA / "stacks/mpt-eager.json").read_text()
    changed = steps.with_value(text, "host.step_s", 0.5, {"source": "s"})
    before, after = json.loads(text), json.loads(changed)
    assert after["host"]["step_s"]["value"] == 0.5 and after["host"]["step_s"]["source"] == "s"
    before["host"]["step_s"] |= {"value": 0.5, "source": "s"}
    assert after == before and sum(a != b for a, b in zip(text.splitlines(), changed.splitlines())) == 1
    with pytest.raises(product.Refused, match="host.typo"):
        steps.with_value(text, "host.typo", 1, {})
