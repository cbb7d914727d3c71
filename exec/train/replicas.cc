// SPDX-License-Identifier: Apache-2.0
#include "exec/train/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/train/data/mapped_file.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

/// Elements of a parameter that a rank holds.
struct HeldElements {
  std::uint64_t first = 0;  // the global index of the first one
  std::uint32_t form = 0;   // of how many rows and columns
  std::uint32_t sum = 0;    // of their values
};
static_assert(sizeof(HeldElements) == 16);

std::vector<HeldElements> held_elements(Executor& executor) {
  const std::vector<OwnedState> states = executor.owned_state();
  const auto squares = executor.squares_of_parameters(states);
  std::vector<HeldElements> held;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::int64_t form[] = {states[i].rows, states[i].cols};
    held.push_back({executor.layout().tensor(states[i].tensor).first_index +
                        static_cast<std::uint64_t>(states[i].tensor_offset),
                    crc32(std::as_bytes(std::span(form))),
                    crc32(std::as_bytes(std::span(squares[i])))});
  }
  return held;
}

std::string name_of(const ParameterLayout& layout, std::uint64_t index) {
  for (const ParameterTensor& tensor : layout.tensors()) {
    if (index - tensor.first_index < static_cast<std::uint64_t>(tensor.size)) return tensor.name;
  }
  return "a parameter of another stage";
}

std::string ranks_in_words(const std::vector<std::int64_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// Of a parameter whose ranks hold several values: the fewest ranks with one against all others.
[[noreturn]] void fail(const std::string& tensor, std::int64_t step,
                       const std::map<std::uint32_t, std::vector<std::int64_t>>& ranks_by_value) {
  const auto odd = std::min_element(
      ranks_by_value.begin(), ranks_by_value.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second.size(), a.second) < std::pair(b.second.size(), b.second);
      });
  std::vector<std::int64_t> others;
  for (const auto& [value, ranks] : ranks_by_value) {
    if (value != odd->first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::sort(others.begin(), others.end());
  throw Error(fmt::format("after step {} {} differs between {} and {}, which must hold the same: a "
                          "processor, a memory or a link has failed; go on from a checkpoint",
                          step, tensor, ranks_in_words(odd->second), ranks_in_words(others)),
              ExitCode::kFailed);
}

void compare_in(Executor& executor, CommGroup kind, const std::vector<HeldElements>& mine,
                std::int64_t step) {
  Communicator* group = executor.group(kind);
  if (group == nullptr || group->size() == 1) return;
  struct Head {
    std::uint32_t sum, count;
  };
  const Head head{crc32(std::as_bytes(std::span(mine))), static_cast<std::uint32_t>(mine.size())};
  const std::vector<Head> heads = exchange_all(*group, head);
  std::uint32_t most = 0;
  bool are_equal = true;
  for (const Head& of : heads) {
    most = std::max(most, of.count);
    are_equal &= of.sum == head.sum;
  }
  if (are_equal) return;
  std::vector<HeldElements> padded = mine;
  padded.resize(most);
  std::vector<HeldElements> all(most * heads.size());
  group->exchange(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  const std::vector<std::int64_t> members = executor.members(kind);
  std::map<std::pair<std::uint64_t, std::uint32_t>,
           std::map<std::uint32_t, std::vector<std::int64_t>>>
      ranks_by_value;
  for (std::size_t r = 0; r < heads.size(); ++r) {
    for (std::size_t i = 0; i < heads[r].count; ++i) {
      const HeldElements& held = all[r * most + i];
      ranks_by_value[{held.first, held.form}][held.sum].push_back(members[r]);
    }
  }
  for (const auto& [place, by_value] : ranks_by_value) {
    if (by_value.size() > 1) fail(name_of(executor.layout(), place.first), step, by_value);
  }
}

}  // namespace

void compare_replicas(Executor& executor, std::int64_t step) {
  const std::vector<HeldElements> mine = held_elements(executor);
  compare_in(executor, CommGroup::kReplicate, mine, step);
  // What these ranks compute each for itself is the same where the order of sums is.
  if (!executor.world().ordered()) return;
  compare_in(executor, CommGroup::kTensor, mine, step);
  compare_in(executor, CommGroup::kPipeline, mine, step);
}

}  // namespace shardwright::exec
