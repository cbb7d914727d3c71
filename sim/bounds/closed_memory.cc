// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/closed_memory.h"

#include <algorithm>

#include "sim/core/arena.h"
#include "sim/core/base/check.h"
#include "sim/core/placement.h"

namespace shardwright::sim {

namespace {

/// A layer's content applies to units 1..L; what does not belong to a layer is never checkpointed.
bool is_layer(std::int32_t unit, std::int64_t layers) {
  return unit >= 1 && unit <= layers;
}

MemoryPeak sum(const MemoryPeak& first, const MemoryPeak& second, std::int64_t times = 1) {
  return {first.bytes + times * second.bytes, first.passing_bytes + times * second.passing_bytes};
}

}  // namespace

ClosedMemory::Stretch ClosedMemory::after(const Stretch& first, const Stretch& second) {
  const MemoryPeak high = sum(first.change, second.high);
  return {sum(first.change, second.change), high.bytes > first.high.bytes ? high : first.high};
}

ClosedMemory::Stretch ClosedMemory::repeated(const Stretch& once, std::int32_t repeats) {
  const std::int32_t rises = once.change.bytes > 0 ? repeats - 1 : 0;
  return {sum({}, once.change, repeats), sum(once.high, once.change, rises)};
}

std::vector<ClosedMemory::Section> ClosedMemory::sections_of(const Schedule& none,
                                                             const Schedule& all) {
  const auto stretch_of = [](const Schedule& schedule, const Block& block) {
    Stretch stretch;
    for (std::uint32_t i = block.first_action; i < block.first_action + block.action_count; ++i) {
      const MemoryAction& action = schedule.memory[i];
      const Bytes bytes = action.acquire ? action.bytes : -action.bytes;
      stretch.change.bytes += bytes;
      if (passes_with_micro_batch(action.category)) stretch.change.passing_bytes += bytes;
      if (stretch.change.bytes > stretch.high.bytes) stretch.high = stretch.change;
    }
    return stretch;
  };
  SHARDWRIGHT_CHECK(none.blocks.size() == all.blocks.size(),
                    "{} blocks without checkpoints, {} with", none.blocks.size(),
                    all.blocks.size());
  std::vector<Section> sections;
  for (const shardwright::Section& section : none.sections) {
    Section& written = sections.emplace_back();
    written.repeats = section.repeats;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Block& block = none.blocks[b];
      const Block& other = all.blocks[b];
      SHARDWRIGHT_CHECK(block.first_unit == other.first_unit && block.repeats == other.repeats,
                        "checkpointing moves the units of block {}", b);
      const Stretch content[2] = {stretch_of(none, block), stretch_of(all, other)};
      for (std::int32_t rep = 0; rep < block.repeats; ++rep) {
        written.passes.push_back(
            {block.first_unit + rep * block.unit_step, {content[0], content[1]}});
      }
    }
  }
  return sections;
}

ClosedMemory::ClosedMemory(const Schedule& none, const Schedule& all, MemoryManager manager)
    : layers_(none.layers), arenas_(manager == MemoryManager::kStatic) {
  if (arenas_) {
    persistent_ = persistent_bytes(none);
  } else {
    for (const PersistentTensor& tensor : none.persistent) persistent_ += tensor.bytes;
  }
  if (arenas_) {
    add_arenas(none, all);
  } else {
    sections_ = sections_of(none, all);
  }
}

void ClosedMemory::add_arenas(const Schedule& none, const Schedule& all) {
  const ArenaPlan plans[2] = {plan_arena(none), plan_arena(all)};
  stack_.repeats = 1;
  for (int which = 0; which < 2; ++which) hand_over_[which] = 2 * plans[which].hand_over_bytes;
  for (std::int32_t unit = 0; unit < none.units(); ++unit) {
    const auto u = static_cast<std::size_t>(unit);
    Pass& pass = stack_.passes.emplace_back();
    pass.unit = unit;
    for (int which = 0; which < 2; ++which) {
      const Bytes kept = plans[which].unit_base[u + 1] - plans[which].unit_base[u];
      pass.content[which] = {{kept}, {kept + plans[which].unit_scratch[u]}};
    }
  }
}

std::vector<ClosedMemory::Stretch> ClosedMemory::prefixes_of(const Section& section) const {
  // With k layers checkpointed, everything between the forward and the backward pass of layer k has
  // the content without, everything around it the content with checkpoints. Going from k = L
  // downwards, the stretch between grows at both ends.
  const std::vector<Pass>& passes = section.passes;
  const std::size_t n = passes.size();
  std::vector<Stretch> before(n + 1), behind(n + 1);
  const auto with = [&](std::size_t i) -> const Stretch& {
    return passes[i].content[is_layer(passes[i].unit, layers_) ? 1 : 0];
  };
  for (std::size_t i = 0; i < n; ++i) before[i + 1] = after(before[i], with(i));
  for (std::size_t i = n; i-- > 0;) behind[i] = after(with(i), behind[i + 1]);
  std::vector<Stretch> result(static_cast<std::size_t>(layers_) + 1);
  // [begin, end): the stretch between. It starts as the passes of the head.
  std::size_t begin = 0;
  while (begin < n && passes[begin].unit <= layers_) ++begin;
  std::size_t end = begin;
  Stretch between;
  while (end < n && passes[end].unit > layers_) between = after(between, passes[end++].content[0]);
  for (std::int64_t k = layers_; k >= 0; --k) {
    if (k < layers_) {
      const auto unit = static_cast<std::int32_t>(k) + 1;
      if (begin > 0 && passes[begin - 1].unit == unit)
        between = after(passes[--begin].content[0], between);
      if (end < n && passes[end].unit == unit) between = after(between, passes[end++].content[0]);
    }
    result[static_cast<std::size_t>(k)] = after(after(before[begin], between), behind[end]);
  }
  return result;
}

std::vector<MemoryPeak> ClosedMemory::peaks_of_prefixes() const {
  const auto count = static_cast<std::size_t>(layers_) + 1;
  std::vector<MemoryPeak> peaks(count);
  if (arenas_) {
    const std::vector<Stretch> stacks = prefixes_of(stack_);
    for (std::size_t k = 0; k < count; ++k) {
      const Bytes hand_over = k == 0           ? hand_over_[0]
                              : k + 1 == count ? hand_over_[1]
                                               : std::max(hand_over_[0], hand_over_[1]);
      peaks[k].bytes = persistent_ + hand_over + stacks[k].high.bytes;
    }
    return peaks;
  }
  std::vector<Stretch> steps(count);
  for (const Section& section : sections_) {
    const std::vector<Stretch> prefixes = prefixes_of(section);
    for (std::size_t k = 0; k < count; ++k)
      steps[k] = after(steps[k], repeated(prefixes[k], section.repeats));
  }
  for (std::size_t k = 0; k < count; ++k) peaks[k] = sum({persistent_}, steps[k].high);
  return peaks;
}

MemoryPeak ClosedMemory::peak(std::int64_t count, std::int64_t stride) const {
  const auto checkpointed = [&](std::int32_t unit) {
    const std::int64_t layer = unit - 1;
    return is_layer(unit, layers_) && layer % stride == 0 && layer / stride < count;
  };
  const auto walk = [&](const Section& section) {
    Stretch stretch;
    for (const Pass& pass : section.passes)
      stretch = after(stretch, pass.content[checkpointed(pass.unit) ? 1 : 0]);
    return stretch;
  };
  if (arenas_) {
    const bool whole = stride == 1 && count == layers_;
    const Bytes hand_over = count == 0 ? hand_over_[0]
                            : whole    ? hand_over_[1]
                                       : std::max(hand_over_[0], hand_over_[1]);
    return {persistent_ + hand_over + walk(stack_).high.bytes};
  }
  Stretch step;
  for (const Section& section : sections_)
    step = after(step, repeated(walk(section), section.repeats));
  return sum({persistent_}, step.high);
}

}  // namespace shardwright::sim
