# SPDX-License-Identifier: Apache-2.0
"""Fits of single kernels find planted constants, by the product's own formulas."""
import collections

import numpy as np
import pytest

from profiles.research import kernels, product


def timed(table, values):
    """The table as if it had been measured on a machine with these values."""
    table.measured = table.times(np.array(values))
    return table


def test_folds_are_balanced_and_fixed():
    sizes = collections.Counter(kernels.fold_of(m, 64, 4096) for m in range(1, 2001))
    assert len(sizes) == kernels.FOLDS and all(350 < size < 450 for size in sizes.values())
    assert [kernels.fold_of(4096, 4096, 4096), kernels.fold_of(-1, 0)] == FIXED


FIXED = [3, 3]  # an answer of every machine: what was held out stays so


def test_finds_the_minimum_of_a_curved_valley_and_of_kinks():
    valley = lambda x: (np.log(x[0]) - 1) ** 2 + 100 * (np.log(x[1]) - np.log(x[0]) ** 2) ** 2
    assert np.log(kernels.least_of(valley, (1, 1), 4000)[0]) == pytest.approx([1, 1], abs=1e-3)
    truth = np.arange(1, 9) / 4
    kinks = lambda x: np.sum(np.abs(np.log(x) - truth)) + np.max(np.abs(np.log(x) - truth))
    assert np.log(kernels.least_of(kinks, np.ones(8), 20000)[0]) == pytest.approx(truth, abs=0.02)


@pytest.fixture(scope="module")
def gemms():
    rows = [row for row in product.read_table("gemm") if row["gpu"] == "h100-80g"][::4]
    return kernels.Gemms("h100-80g", rows)


def test_products_give_planted_values_through_disturbed_rows(gemms):
    planted = np.array([3e-6, 0.8, 150, 0.6, 0.1, 2e-6, 0.05, 1e-3])
    timed(gemms, planted).measured[::17] *= 1.5
    found = gemms.fit(gemms.everyone())
    assert found[1] == pytest.approx(planted[1], rel=0.03)
    undisturbed = np.arange(len(gemms.rows)) % 17 != 0
    assert np.mean(gemms.errors(found)[undisturbed]) < 0.01


def test_what_ships_stays_unless_it_fits_worse(gemms):
    planted = np.array([3e-6, 0.8, 150, 0.6, 0.1, 2e-6, 0.05, 1e-3])
    timed(gemms, planted)
    assert list(gemms.kept(planted)) == list(planted)
    assert gemms.kept(planted * [1, 0.9, 1, 1, 1, 1, 1, 1])[1] == pytest.approx(0.8, rel=0.01)


def test_a_row_that_a_larger_product_contradicts_is_not_fitted_to():
    row = lambda size, time_us: {"m": size, "n": size, "k": size, "time_us": time_us}
    table = kernels.Gemms("h100-80g", [row(1024, 30), row(2048, 20), row(4096, 200)])
    assert list(table.contradicted) == [True, False, False]
    assert list(table.weights) == [0, 1, 1] and list(table.counted()) == [False, True, True]


def test_dispatch_gives_planted_values():
    row = lambda tokens, hidden, topk, sms: {"tokens": tokens, "hidden": hidden, "element_bytes": 2, "topk": topk,
                                             "experts": 256, "ranks": 8, "sms": sms, "time_us": 1}
    rows = [row(*of) for of in np.array(np.meshgrid([1024, 4096, 16384], [2048, 7168], [2, 8], [8, 16, 20, 24])).reshape(4, -1).T]
    planted = (6e-5, 5e-7, 2.5e10, 4e11)
    table = timed(kernels.Dispatches("h100-80g", rows), planted)
    assert table.fit(table.everyone())[2:] == pytest.approx(planted[2:], rel=0.05)


def test_rows_of_both_passes_of_attention_are_split():
    shipped = (5e14, 600, 4e14, 700)
    rows = [{"seq_len": 512 * 2**i, "pass": of, "tflops": 100} for i in range(6) for of in ("forward", "forward+backward")]
    table = timed(kernels.Attention("a100-80g", "fa2", rows, shipped), (2e14, 500, 1.5e14, 900))
    table.highest = 2e14
    assert table.fit(table.everyone()) == pytest.approx([2e14, 500, 1.5e14, 900], rel=0.02)
    assert table.words() == "forward and backward"


def test_a_pass_of_attention_with_too_few_rows_keeps_its_ratio():
    rows = [{"seq_len": 512 * 2**i, "pass": "forward", "tflops": 100} for i in range(5)]
    table = timed(kernels.Attention("a100-80g", "fa2", rows, (2e14, 500, 1e14, 900)), (3e14, 500, 1e14, 900))
    table.highest = 3e14
    forward, _, backward, s0 = table.fit(table.everyone())
    assert backward == pytest.approx(forward / 2, rel=1e-3) and s0 == 900


def test_an_unknown_kernel_is_refused():
    with pytest.raises(product.Refused, match="expected gemm"):
        product.Kernels("conv", "h100-80g", [[1.0]], ())
    with pytest.raises(product.Refused, match="h100"):
        product.Kernels("gemm", "h100", [[1.0, 1.0, 1.0]], ())
