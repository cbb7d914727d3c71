// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/trace_tables.h"

namespace shardwright::profiles {

NameTable::NameTable(std::size_t max_bytes) : left_(max_bytes) {
  ids_.emplace(texts_.emplace_back(), 0);
}

NameId NameTable::id(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  constexpr std::size_t kOverhead = 96;  // of one entry of the map and the list
  if (text.size() + kOverhead > left_) {
    ++refused_;
    return 0;
  }
  left_ -= text.size() + kOverhead;
  const auto id = static_cast<NameId>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

void count_left_out(std::vector<LeftOut>& list, const std::string& what, double seconds,
                    std::int64_t count) {
  for (LeftOut& entry : list) {
    if (entry.what == what) {
      entry.count += count;
      entry.seconds += seconds;
      return;
    }
  }
  list.push_back({what, count, seconds});
}

}  // namespace shardwright::profiles
