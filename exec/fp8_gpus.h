// SPDX-License-Identifier: Apache-2.0
// Which products in fp8 a GPU has, by its compute capability: tables of cuBLAS's documentation
// (cublasLtMatmul, narrow precisions) of what layouts and which scales it takes where.
#pragma once

#include <string>
#include <string_view>

#include "sim/core/parallelism.h"

namespace shardwright::exec {

/// Codes with one scale may be multiplied along either dimension: Blackwell of data centres (10,
/// 11). Ada, Hopper and GeForce Blackwell want the one that is summed over last.
constexpr bool multiplies_fp8_both_ways(int compute_major) {
  return compute_major == 10 || compute_major == 11;
}

/// Why the GPU cannot train by the recipe, as a sentence with what would do; empty: it can.
std::string why_no_fp8(std::string_view gpu, int compute_major, int compute_minor,
                       Fp8Recipe recipe);

}  // namespace shardwright::exec
