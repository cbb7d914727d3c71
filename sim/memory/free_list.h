// SPDX-License-Identifier: Apache-2.0
// The free blocks of one stream and pool, ordered by size and then by address, for best fit.
//
// A sorted array: pools hold tens of free blocks, where moving a few cache lines beats any tree,
// and nothing is allocated per operation. replace_at() is the operation that matters: a split
// shrinks and a merge grows a block that is already listed, so most calls move one entry past a few
// others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::sim {

class FreeList {
 public:
  struct Entry {
    Bytes size;
    Bytes address;
    std::uint32_t block;
  };

  std::size_t size() const { return entries_.size(); }
  const Entry& operator[](std::size_t slot) const { return entries_[slot]; }
  void clear() { entries_.clear(); }

  /// First slot whose block is at least `size` large; size() when there is none.
  std::size_t best_fit(Bytes size) const { return position({size, 0, 0}, 0, entries_.size()); }

  /// The slot of an entry that is listed.
  std::size_t find(const Entry& entry) const {
    const std::size_t slot = position(entry, 0, entries_.size());
    SHARDWRIGHT_CHECK(slot < entries_.size() && entries_[slot].block == entry.block,
                      "block {} is not in its free list", entry.block);
    return slot;
  }

  void insert(const Entry& entry) {
    const std::size_t slot = position(entry, 0, entries_.size());
    entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(slot), entry);
  }

  void erase_at(std::size_t slot) {
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(slot));
  }

  /// erase_at(slot) and insert(entry) in one move.
  void replace_at(std::size_t slot, const Entry& entry) {
    const auto at = entries_.begin() + static_cast<std::ptrdiff_t>(slot);
    if (less(entry, *at)) {
      const auto target = entries_.begin() + static_cast<std::ptrdiff_t>(position(entry, 0, slot));
      std::move_backward(target, at, at + 1);
      *target = entry;
    } else {
      const auto target = entries_.begin() +
                          static_cast<std::ptrdiff_t>(position(entry, slot + 1, entries_.size()));
      std::move(at + 1, target, at);
      *(target - 1) = entry;
    }
  }

  /// Drops the entries for which `gone(entry)` is true; the others keep their order.
  template <typename Predicate>
  void erase_if(Predicate gone) {
    std::erase_if(entries_, gone);
  }

 private:
  static bool less(const Entry& a, const Entry& b) {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
  }

  std::size_t position(const Entry& entry, std::size_t begin, std::size_t end) const {
    const auto first = entries_.begin();
    return static_cast<std::size_t>(std::lower_bound(first + static_cast<std::ptrdiff_t>(begin),
                                                     first + static_cast<std::ptrdiff_t>(end),
                                                     entry, less) -
                                    first);
  }

  std::vector<Entry> entries_;
};

}  // namespace shardwright::sim
