// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/chunk_memory.h"

#include <algorithm>
#include <vector>

namespace shardwright::sim {
namespace {

MemoryChange change_of(const Schedule& schedule, const Section& section, PassPart part) {
  MemoryChange change;
  std::vector<MemoryAction> actions;
  for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count; ++b) {
    const Block& block = schedule.blocks[b];
    const BlockPart here(schedule, block, part);
    actions.clear();
    for (std::uint32_t i = 0; i < block.action_count; ++i)
      here.add_to(actions, schedule.memory[block.first_action + i]);
    if (part != PassPart::kAll) {
      std::stable_sort(
          actions.begin(), actions.end(),
          [](const MemoryAction& one, const MemoryAction& other) { return one.op < other.op; });
    }
    const auto look = [&change] {
      if (change.net.bytes > change.most.bytes) change.most = change.net;
    };
    follow_repeats(block.repeats, change.net, [&](std::int32_t) {
      for (const MemoryAction& action : actions) {
        if (!action.acquire) look();  // nothing is higher before it falls
        change.net.add(action);
      }
      look();
    });
  }
  return change;
}

}  // namespace

const MemoryChange& ChunkMemory::of(ChunkSection section, PassPart part) {
  const auto which = static_cast<std::size_t>(section);
  std::optional<MemoryChange>& known = known_[which][static_cast<std::size_t>(part)];
  if (!known) known = change_of(*schedule_, schedule_->sections[which], part);
  return *known;
}

}  // namespace shardwright::sim
