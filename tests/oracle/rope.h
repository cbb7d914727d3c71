// SPDX-License-Identifier: Apache-2.0
// Oracle for rotary position embedding, straight from complex multiplication, in double.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/core/model.h"

namespace shardwright::kernels::reference {

/// Rotates x[tokens, heads, head_dim] by +1 (forward) or -1 (gradient) times each token's angles.
/// The pair (j, j + r/2) of the first r = rotary_dim elements is one complex number, turned by
/// position * frequency_j.
std::vector<double> rope(const std::vector<double>& x, std::int64_t heads, std::int64_t head_dim,
                         std::int64_t rotary_dim, const Rope& parameters,
                         const std::vector<std::int32_t>& positions, double direction);

/// Frequency of pair j after scaling, in double throughout.
double rope_frequency(const Rope& parameters, std::int64_t rotary_dim, std::int64_t j);

}  // namespace shardwright::kernels::reference
