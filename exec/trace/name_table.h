// SPDX-License-Identifier: Apache-2.0
// The names of several timelines as those of one.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/core/timeline.h"

namespace shardwright::exec {

class NameTable {
 public:
  /// Adds to `names`, which outlives the table.
  explicit NameTable(std::vector<std::string>& names);
  std::int32_t index_of(const std::string& name);
  /// Turns indices into `from` into indices into the table.
  void rename(std::vector<Span>& spans, const std::vector<std::string>& from);

 private:
  std::vector<std::string>& names_;
  std::unordered_map<std::string, std::int32_t> places_;
};

}  // namespace shardwright::exec
