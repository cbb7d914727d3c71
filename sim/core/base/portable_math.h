// SPDX-License-Identifier: Apache-2.0
// exp and log with the same bits on every machine.
//
// C libraries compute these by whatever instructions a processor has, so an interval that is
// printed with all its digits would differ between two machines, and between the program and the
// planner page. These add, multiply and divide doubles in one order, which IEEE 754 rounds alike
// everywhere. Within two units in the last place of the true value.
#pragma once

namespace shardwright {

/// e to the power of `x`.
double portable_exp(double x);

/// exp(x) - 1, exact of small `x`, too.
double portable_expm1(double x);

/// The natural logarithm of `x`; minus infinity of 0, NaN of what is below.
double portable_log(double x);

/// `x` to the power of `y`, `x` above 0: the error grows with |y log x|.
double portable_pow(double x, double y);

}  // namespace shardwright
