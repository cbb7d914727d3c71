// SPDX-License-Identifier: Apache-2.0
// What an operator of PyTorch is work for: a GEMM, attention, or so many bytes moved.
//
// Told from the operator's name and the shapes of its arguments, never from the name of the kernel,
// which says how the library did it. Bytes are counted as the kernel must move them at least once:
// every tensor argument is read, the result is written. An operator that is not in the table, or
// whose shapes were not recorded, is no work that a model could be fitted to.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "profiles/import/tensor_shapes.h"
#include "sim/core/op.h"

namespace shardwright::profiles {

/// What an operator is, by its name alone.
enum class OperatorClass : std::uint8_t { kUnknown, kGemm, kAttention, kMemory };
OperatorClass class_of(std::string_view name);

/// Operators that are only called in the forward pass; met inside a backward operator they mean
/// that activations are computed again.
bool only_forward(std::string_view name);

struct OperatorWork {
  OpKind op = OpKind::kHostWork;
  Work work;
  std::int64_t batch = 1;  // independent products of one launch
};

/// None when the arguments do not have the form that the operator has.
std::optional<OperatorWork> work_of(std::string_view name, const std::vector<Argument>& arguments);

/// What the name of a kernel says of it, in words: "GEMM", "attention", "collective",
/// "copy or element-wise", "optimizer", "other".
std::string_view kernel_family(std::string_view kernel);

}  // namespace shardwright::profiles
