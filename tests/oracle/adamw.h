// SPDX-License-Identifier: Apache-2.0
// Oracle for AdamW with full-precision state, in double.
#pragma once

#include <vector>

#include "kernels/arguments.h"

namespace shardwright::kernels::reference {

/// One step in place; all vectors have the same size.
void adamw(const AdamW& options, const std::vector<double>& gradient,
           std::vector<double>& parameter, std::vector<double>& m, std::vector<double>& v);

}  // namespace shardwright::kernels::reference
