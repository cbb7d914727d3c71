// SPDX-License-Identifier: Apache-2.0
// What runs of a stack set in their plans where a table does not say:
// profiles/data/published/usual_plans.json.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/core/plan.h"

namespace shardwright::profiles {

struct UsualPlan {
  std::optional<DType> reduce_dtype;
  /// Parameters are kept and gathered in fp8 where a tensor has one scale, or with MXFP8.
  bool fp8_params = false;
  std::string recompute;  // as a plan says it; empty: none
  /// Of runs that drop no tokens.
  std::optional<Dispatcher> dispatcher;
};

/// Of the shipped stack of that name and models of an architecture, as Hugging Face calls it, on a
/// GPU; nothing of a stack that the file does not mention. Later entries of the file go before.
UsualPlan usual_plan(const std::string& stack, std::string_view architecture, std::string_view gpu);

}  // namespace shardwright::profiles
