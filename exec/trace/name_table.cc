// SPDX-License-Identifier: Apache-2.0
#include "exec/trace/name_table.h"

namespace shardwright::exec {

NameTable::NameTable(std::vector<std::string>& names) : names_(names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    places_.emplace(names[i], static_cast<std::int32_t>(i));
  }
}

std::int32_t NameTable::index_of(const std::string& name) {
  const auto [at, is_new] = places_.emplace(name, static_cast<std::int32_t>(names_.size()));
  if (is_new) names_.push_back(name);
  return at->second;
}

void NameTable::rename(std::vector<Span>& spans, const std::vector<std::string>& from) {
  for (Span& span : spans) {
    if (span.name < 0 || static_cast<std::size_t>(span.name) >= from.size()) continue;
    span.name = index_of(from[static_cast<std::size_t>(span.name)]);
  }
}

}  // namespace shardwright::exec
