// SPDX-License-Identifier: Apache-2.0
// Oracle for numbers in fp8: all codes are tried, in double.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/fp8.h"

namespace shardwright::kernels::reference {

/// By the definition of the format: sign, exponent, mantissa.
double fp8_value(Fp8Format format, std::uint8_t code);
/// The code that is nearest, an even one of two; the largest where all are smaller.
std::uint8_t nearest_fp8(Fp8Format format, double value);

/// Rows of `cols` numbers in fp8.
struct Quantized {
  std::vector<std::uint8_t> codes;
  std::vector<double> divisors;  // of each number: what its code is multiplied by again
  std::vector<double> values;    // of codes, times that
};
Quantized quantize(Fp8Format format, Fp8Scaling scaling, const std::vector<double>& numbers,
                   std::int64_t cols);

}  // namespace shardwright::kernels::reference
