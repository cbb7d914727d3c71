// SPDX-License-Identifier: Apache-2.0
// The least that passes of a pipeline take, unit by unit: the engine times each kind of unit alone,
// as the strategy writes it, and units follow one another. What overlaps units (collectives of
// another micro-batch) counts nothing. Kept for plans whose units are the same, so that a search
// bounds many pipelines at the cost of one.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "profiles/profile.h"
#include "sim/core/model.h"
#include "sim/core/units.h"
#include "sim/cost/cost.h"
#include "sim/engine/engine.h"
#include "sim/program/layer_program.h"
#include "sim/program/stages.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

/// Of the compute stream and the host; they add up over units.
struct LeastPass {
  Nanoseconds device_ns = 0, host_ns = 0;
  Nanoseconds delayed_ns = 0;  // of device_ns: weight gradients
  Nanoseconds least_ns() const { return std::max(device_ns, host_ns); }
  void add(const LeastPass& other, std::int64_t times = 1) {
    device_ns += times * other.device_ns;
    host_ns += times * other.host_ns;
    delayed_ns += times * other.delayed_ns;
  }
};

class UnitBounds {
 public:
  UnitBounds(const Model& model, const profiles::Profile& profile)
      : model_(model), profile_(profile), costs_(profile) {}

  struct Chunk {
    LeastPass forward, backward;
    Nanoseconds head_delayed_ns = 0;
  };
  struct Units {
    Chunk embedding, head;
    Chunk ending;                 // the head with all modules of multi-token prediction
    Chunk layer[kLayerKinds][2];  // by LayerKind::index and recomputation
  };
  Units units(const Plan& plan);
  /// Of a chunk of such units.
  Chunk of(const Units& units, const ChunkContent& content) const;

 private:
  struct Key {
    ListKey list;
    Strategy strategy;
    std::array<std::int64_t, 5> places{};
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const;
  };
  void time_plain(const Plan& plan, const Layout& layout, Units& units);
  void time_recomputed(const Plan& plan, const Layout& layout, Units& units);
  /// Adds what the chunk's units take to theirs.
  void add(const Plan& plan, const Layout& layout, const LayerPrograms& programs,
           const ChunkContent& content, Units& units);
  LeastPass least(std::uint32_t block);

  const Model& model_;
  const profiles::Profile& profile_;
  CostModel costs_;
  Engine engine_;
  Schedule schedule_;
  std::vector<OpCost> op_costs_;
  using Known = std::unordered_map<Key, Units, KeyHash>;
  Known plain_, recomputed_;  // of the second only recomputed layers
};

}  // namespace shardwright::sim
