// SPDX-License-Identifier: Apache-2.0
// The shapes and types of an operator's arguments, from the texts that a profiler records.
//
// "Input Dims" is a list with one entry per argument: the extents of a tensor, a list of such for a
// list of tensors, or nothing. "Input type" names their types in the same order, "Concrete Inputs"
// (newer) the values of what is no tensor. Texts that are not of this form give no arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright::profiles {

struct TensorShape {
  std::vector<std::int64_t> dims;
  int element_bytes = 0;  // 0: unknown type

  std::int64_t elements() const;  // saturates
  double bytes() const { return static_cast<double>(elements()) * element_bytes; }
};

struct Argument {
  std::vector<TensorShape> tensors;  // none: no tensor; several: a list of tensors
  std::string value;                 // of what is no tensor, where it was recorded
  bool is_list = false;

  bool is_tensor() const { return tensors.size() == 1 && !is_list; }
};

/// Ends DIMS and TYPES in a recorded text; JSON may hold any white space but not this.
inline constexpr char kPartEnd = '\x1e';

/// `recorded` is DIMS, TYPES and VALUES with kPartEnd between them, as HostRange::shapes.
std::vector<Argument> parse_arguments(std::string_view recorded);

/// Bytes of one element of the type "c10::BFloat16", "float", "BFloat16"; 0 when it is unknown.
int element_bytes_of(std::string_view type);

}  // namespace shardwright::profiles
