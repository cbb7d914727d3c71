// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/closed_form.h"

#include <algorithm>
#include <cmath>

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

// What this file and step_stretches.cc buy. The ten best of the 92,256 plans of
// search/llama_3_70b (tests/bench/tuner_bench.cc) take 494 simulations and 0.12 s of processor
// time. With a bound that knows only the busiest stream, the host and the sum of compute kernels
// (the line `bound` of bound_ns as the largest of whole_.compute_ns, whole_.busiest_ns and
// host_ns_) they take 3,254 simulations and 0.34 s; on the eager stack 298 become 476. Where the
// space has one plan a family (llama_3_70b_one_each) or one plan stands out (llama_3_1_405b)
// nothing changes. `size` searches dozens of such spaces. That is what this much code has to be
// worth; if the event simulation becomes three times as fast, it no longer is.
//
// How it works: kernels of the compute stream are counted by cost, once per run of blocks, with and
// without checkpoints. The difference per layer makes each count a line in the number of
// checkpointed layers, so a bound for k layers is a few multiplications. Kernels that a collective
// slows alike form a group; the bound lets collectives lie beside the groups that lose least.

namespace {

/// Kernels of one cost: how many there are without checkpoints, how many more per checkpointed
/// layer.
struct Kernels {
  Nanoseconds alone_ns, contended_ns;
  std::int64_t count;
  std::int64_t per_layer;
};

bool is_compute_kernel(const Op& op, const OpCost& cost) {
  return op.stream == 0 && cost.alone_ns > 0 && op.work.kind != WorkKind::kCollective &&
         op.work.kind != WorkKind::kHost;
}

void add(std::vector<Kernels>& list, const OpCost& cost, std::int64_t count,
         std::int64_t per_layer) {
  for (Kernels& known : list) {
    if (known.alone_ns == cost.alone_ns && known.contended_ns == cost.contended_ns) {
      known.count += count;
      known.per_layer += per_layer;
      return;
    }
  }
  list.push_back({cost.alone_ns, cost.contended_ns, count, per_layer});
}

}  // namespace

/// Holds what the constructor needs and the bound does not.
class ClosedTimeBuilder {
 public:
  using Line = ClosedTime::Line;
  using Part = ClosedTime::Part;
  using Group = ClosedTime::Group;

  ClosedTimeBuilder(const Schedule& none, const std::vector<OpCost>& none_costs,
                    const Schedule& all, const std::vector<OpCost>& all_costs)
      : none_(none), none_costs_(none_costs), all_(all), all_costs_(all_costs) {
    SHARDWRIGHT_CHECK(none.blocks.size() == all.blocks.size(),
                      "{} blocks without checkpoints, {} with", none.blocks.size(),
                      all.blocks.size());
  }

  void build(const StepStretches& stretches, ClosedTime& form) {
    find_runs();
    for (const Stretch& stretch : stretches.phases) {
      Part part = part_of(stretch);
      // Micro-batches are much alike.
      const auto same = std::find_if(form.phases_.begin(), form.phases_.end(),
                                     [&part](const Part& known) { return known.like(part); });
      if (same == form.phases_.end()) {
        form.phases_.push_back(std::move(part));
      } else {
        same->times += part.times;
      }
    }
    form.last_two_ = part_of(stretches.last_two);
    form.whole_ = part_of(stretches.whole);
    const std::size_t phases = stretches.phases.size();
    for (std::size_t p = phases - std::min<std::size_t>(phases, 2); p < phases; ++p)
      form.separate_.push_back(part_of(stretches.phases[p]));
    for (const Section& section : none_.sections) add_host(form, section);
  }

 private:
  /// Neighbouring blocks of one phase, the passes of layers among them.
  struct Run {
    std::uint32_t first = 0, end = 0;
    std::vector<Kernels> kernels{};
    Line host_ns{}, in_line_ns{};
  };

  bool is_layer(const Block& block) const {
    return block.first_unit >= 1 && block.first_unit <= none_.layers &&
           (block.phase == Phase::kForward || block.phase == Phase::kBackward);
  }

  static void add_block(std::vector<Kernels>& list, const Schedule& schedule,
                        const std::vector<OpCost>& costs, std::uint32_t b, std::int64_t count,
                        std::int64_t per_layer) {
    const Block& block = schedule.blocks[b];
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (is_compute_kernel(schedule.ops[i], costs[i])) add(list, costs[i], count, per_layer);
    }
  }

  static double host_of(const Schedule& schedule, const std::vector<OpCost>& costs,
                        std::uint32_t b) {
    const Block& block = schedule.blocks[b];
    Nanoseconds host = 0;
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (!schedule.ops[i].host_waits) host += costs[i].host_ns;
    }
    return static_cast<double>(host);
  }

  /// Of operations in line that the same block's kernels wait for; others may be the next
  /// stretch's.
  static double in_line_of(const Schedule& schedule, const std::vector<OpCost>& costs,
                           std::uint32_t b) {
    const Block& block = schedule.blocks[b];
    Nanoseconds in_line = 0;
    bool is_followed = false;
    for (std::uint32_t i = block.first_op + block.op_count; i-- > block.first_op;) {
      const Op& op = schedule.ops[i];
      is_followed |= op.stream == 0 && op.work.kind != WorkKind::kHost;
      if (op.in_line() && is_followed) in_line += costs[i].alone_ns;
    }
    return static_cast<double>(in_line);
  }

  void find_runs() {
    run_of_.resize(none_.blocks.size());
    for (const Section& section : none_.sections) {
      const std::uint32_t end = section.first_block + section.block_count;
      for (std::uint32_t b = section.first_block; b < end; ++b) {
        const bool starts =
            b == section.first_block || none_.blocks[b].phase != none_.blocks[b - 1].phase;
        if (starts) runs_.push_back({.first = b});
        runs_.back().end = b + 1;
        run_of_[b] = runs_.size() - 1;
      }
    }
    for (Run& run : runs_) {
      std::int64_t most = 0;
      std::uint32_t layer = run.end;  // the block of layers that repeats most stands for all
      for (std::uint32_t b = run.first; b < run.end; ++b) {
        const std::int64_t repeats = none_.blocks[b].repeats;
        add_block(run.kernels, none_, none_costs_, b, repeats, 0);
        run.host_ns.at_none += static_cast<double>(repeats) * host_of(none_, none_costs_, b);
        run.in_line_ns.at_none += static_cast<double>(repeats) * in_line_of(none_, none_costs_, b);
        if (is_layer(none_.blocks[b]) && repeats > most) {
          most = repeats;
          layer = b;
        }
      }
      if (layer == run.end) continue;
      add_block(run.kernels, all_, all_costs_, layer, 0, 1);
      add_block(run.kernels, none_, none_costs_, layer, 0, -1);
      run.host_ns.per_layer = host_of(all_, all_costs_, layer) - host_of(none_, none_costs_, layer);
      run.in_line_ns.per_layer =
          in_line_of(all_, all_costs_, layer) - in_line_of(none_, none_costs_, layer);
    }
  }

  std::vector<Kernels> compute_kernels(const Stretch& stretch, Line& in_line_ns) const {
    std::vector<Kernels> list;
    for (const BlockRange& range : stretch.blocks) {
      for (std::uint32_t b = range.first; b < range.first + range.count;) {
        const Run& run = runs_[run_of_[b]];
        SHARDWRIGHT_CHECK(b == run.first, "a stretch begins within a run of blocks");
        for (const Kernels& kernels : run.kernels) {
          add(list, {kernels.alone_ns, kernels.contended_ns, 0}, kernels.count * range.times,
              kernels.per_layer * range.times);
        }
        const auto times = static_cast<double>(range.times);
        in_line_ns.at_none += times * run.in_line_ns.at_none;
        in_line_ns.per_layer += times * run.in_line_ns.per_layer;
        b = run.end;
      }
    }
    return list;
  }

  static std::vector<Group> groups_of(std::vector<Kernels>& list) {
    std::sort(list.begin(), list.end(), [](const Kernels& a, const Kernels& b) {
      return static_cast<double>(a.alone_ns) * static_cast<double>(b.contended_ns) >
             static_cast<double>(b.alone_ns) * static_cast<double>(a.contended_ns);
    });
    std::vector<Group> groups;
    for (const Kernels& kernels : list) {
      if (kernels.count == 0 && kernels.per_layer == 0) continue;
      const double contended = static_cast<double>(kernels.contended_ns);
      const double rate = static_cast<double>(kernels.alone_ns) / contended;
      // Of nearly the same rate: one group at the better one.
      if (groups.empty() || rate < groups.back().rate * 0.998) groups.push_back({rate, {}});
      groups.back().contended_ns.at_none += static_cast<double>(kernels.count) * contended;
      groups.back().contended_ns.per_layer += static_cast<double>(kernels.per_layer) * contended;
    }
    return groups;
  }

  Part part_of(const Stretch& stretch) const {
    Part part;
    part.times = static_cast<double>(stretch.times);
    part.collective_ns = static_cast<double>(stretch.collective_ns);
    part.beside_ns = static_cast<double>(stretch.kernels_beside_ns);
    part.busiest_ns = static_cast<double>(stretch.busiest_ns);
    part.lead_ns = static_cast<double>(stretch.lead_ns);
    std::vector<Kernels> list = compute_kernels(stretch, part.in_line_ns);
    for (const Kernels& kernels : list) {
      const double alone = static_cast<double>(kernels.alone_ns);
      part.compute_ns.at_none += alone * static_cast<double>(kernels.count);
      part.compute_ns.per_layer += alone * static_cast<double>(kernels.per_layer);
    }
    part.compute = groups_of(list);
    if (stretch.side.empty()) return part;
    for (const SideKernel& side : stretch.side) {
      part.side_ns += static_cast<double>(side.alone_ns * side.count);
      add(list, {side.alone_ns, side.contended_ns, 0}, side.count, 0);
    }
    part.compute_and_side = groups_of(list);
    return part;
  }

  void add_host(ClosedTime& form, const Section& section) const {
    const double times = section.repeats;
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      form.operations_ += times * none_.blocks[b].repeats * all_.blocks[b].op_count;
      const Run& run = runs_[run_of_[b]];
      if (b != run.first) continue;
      form.host_ns_.at_none += times * run.host_ns.at_none;
      form.host_ns_.per_layer += times * run.host_ns.per_layer;
    }
  }

  const Schedule& none_;
  const std::vector<OpCost>& none_costs_;
  const Schedule& all_;
  const std::vector<OpCost>& all_costs_;
  std::vector<Run> runs_;
  std::vector<std::size_t> run_of_;  // by block
};

namespace {

/// C - P(C): the work that kernels lose at least while collectives are resident for `resident_ns`.
template <class Groups>
double lost_ns(const Groups& groups, double resident_ns, double k) {
  double left = resident_ns;
  double lost = 0;
  for (const auto& group : groups) {
    const double time = std::min(left, std::max(0.0, group.contended_ns.at(k)));
    lost += time * (1 - group.rate);
    left -= time;
    if (left <= 0) return lost;
  }
  return lost + left;  // nothing runs beside the rest
}

}  // namespace

double ClosedTime::Part::bound_ns(double k) const {
  const double work = compute_ns.at(k);
  const std::vector<Group>& all = compute_and_side.empty() ? compute : compute_and_side;
  const double kernels = beside_ns + work + side_ns + lost_ns(all, collective_ns, k);
  // Beside what is in line no kernel of the compute stream runs.
  const double in_line = lead_ns + in_line_ns.at(k);
  const double behind = std::max(0.0, collective_ns - in_line);
  return std::max({busiest_ns, kernels, in_line + work + lost_ns(compute, behind, k)});
}

bool ClosedTime::Part::like(const Part& other) const {
  return collective_ns == other.collective_ns && beside_ns == other.beside_ns &&
         busiest_ns == other.busiest_ns && lead_ns == other.lead_ns && side_ns == other.side_ns &&
         compute_ns == other.compute_ns && in_line_ns == other.in_line_ns &&
         compute == other.compute && compute_and_side == other.compute_and_side;
}

ClosedTime::ClosedTime(const StepStretches& stretches, const Schedule& none,
                       const std::vector<OpCost>& none_costs, const Schedule& all,
                       const std::vector<OpCost>& all_costs) {
  ClosedTimeBuilder(none, none_costs, all, all_costs).build(stretches, *this);
}

Nanoseconds ClosedTime::bound_ns(std::int64_t count) const {
  const auto k = static_cast<double>(count);
  double sum = 0, separate = 0;
  for (const Part& phase : phases_) sum += phase.times * phase.bound_ns(k);
  for (const Part& phase : separate_) separate += phase.bound_ns(k);
  sum += std::max(0.0, last_two_.bound_ns(k) - separate);
  const double bound = std::max({sum, whole_.bound_ns(k), host_ns_.at(k)});
  // The engine rounds to whole nanoseconds wherever a kernel changes its rate.
  return static_cast<Nanoseconds>(std::max(0.0, std::floor(bound - 2 * operations_)));
}

}  // namespace shardwright::sim
