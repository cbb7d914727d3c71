// SPDX-License-Identifier: Apache-2.0
#include "tuner/space_limits.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "sim/bounds/closed_form.h"
#include "sim/core/error.h"

namespace shardwright::tuner {

namespace {

constexpr Bytes kNothingFound = std::numeric_limits<Bytes>::max();

template <class Value>
Value smallest(const std::vector<Value>& values, Value preferred) {
  return std::find(values.begin(), values.end(), preferred) == values.end() ? values.front()
                                                                            : preferred;
}

class Prober {
 public:
  Prober(const Space& space, const Model& model, const profiles::Profile& profile)
      : space_(space),
        closed_(model, profile),
        allowed_(profile.cluster.memory_bytes_per_rank(space.base.gpus) -
                 profile.cluster.gpu.runtime_bytes) {
    base_ = space.base;
    base_.reduce_dtype = smallest(space.reduce_dtypes, DType::kBf16);
    base_.master_dtype = smallest(space.master_dtypes, DType::kBf16);
    base_.moment_dtype = smallest(space.moment_dtypes, DType::kBf16);
    base_.attention = smallest(space.attentions, AttentionKind::kFlash);
    base_.loss_chunks = *std::max_element(space.loss_chunks.begin(), space.loss_chunks.end());
    base_.buffers = *std::min_element(space.buffers.begin(), space.buffers.end());
    recomputations_ = space.recomputations;
    const Recomputation full{};
    if (std::find(recomputations_.begin(), recomputations_.end(), full) != recomputations_.end())
      recomputations_ = {full};
    if (recomputations_.empty()) recomputations_ = {{Recompute::kNone, 0}};
  }

  /// The least that a plan with these values takes; 0 where the combination makes no sense, which
  /// is for the search to say.
  Bytes least_bytes(Strategy strategy, std::int64_t shard_group, const Batch& batch) {
    Plan plan = base_;
    plan.strategy = strategy;
    plan.shard_group = shard_group;
    plan.micro_batch = batch.micro_batch;
    plan.grad_accum = batch.grad_accum;
    Bytes least = kNothingFound;
    for (const Recomputation& recomputation : recomputations_) {
      plan.recompute = recomputation.recompute;
      plan.pieces = recomputation.pieces;
      plan.ckpt_layers = 0;
      try {
        for (const Bytes bytes : closed_.family(plan).allocated_bytes)
          least = std::min(least, bytes);
      } catch (const Error&) {
        return 0;
      }
    }
    return least;
  }

  /// Over the shard groups that the strategy takes.
  Bytes least_bytes(Strategy strategy, const Batch& batch) {
    if (!info_of(strategy).hybrid) return least_bytes(strategy, base_.shard_group, batch);
    Bytes least = kNothingFound;
    // Larger groups take less; the first that fits is enough.
    for (auto group = space_.shard_groups.rbegin(); group != space_.shard_groups.rend(); ++group) {
      least = std::min(least, least_bytes(strategy, *group, batch));
      if (least <= allowed_) break;
    }
    return least;
  }

  Bytes allowed() const { return allowed_; }

 private:
  const Space& space_;
  sim::ClosedForm closed_;
  Bytes allowed_;
  Plan base_;
  std::vector<Recomputation> recomputations_;
};

/// The values of which one probe fits; if there is none, the one that takes least.
template <class Value, class Least>
std::vector<Value> fitting(const std::vector<Value>& values, Bytes allowed, Least least_of) {
  std::vector<Value> kept;
  std::pair<Bytes, const Value*> closest{kNothingFound, nullptr};
  for (const Value& value : values) {
    const Bytes least = least_of(value);
    if (least <= allowed) kept.push_back(value);
    if (closest.second == nullptr || least < closest.first) closest = {least, &value};
  }
  if (kept.empty() && closest.second != nullptr) kept.push_back(*closest.second);
  return kept;
}

}  // namespace

Space without_misfits(const Space& space, const Model& model, const profiles::Profile& profile) {
  Prober prober(space, model, profile);
  Space kept = space;
  const auto over = [&](const auto& values, const auto& least_of) {
    Bytes least = kNothingFound;
    for (const auto& value : values) {
      least = std::min(least, least_of(value));
      if (least <= prober.allowed()) break;
    }
    return least;
  };
  kept.strategies = fitting(space.strategies, prober.allowed(), [&](Strategy strategy) {
    return over(space.batches,
                [&](const Batch& batch) { return prober.least_bytes(strategy, batch); });
  });
  kept.batches = fitting(space.batches, prober.allowed(), [&](const Batch& batch) {
    return over(kept.strategies,
                [&](Strategy strategy) { return prober.least_bytes(strategy, batch); });
  });
  const auto hybrid = std::find_if(kept.strategies.begin(), kept.strategies.end(),
                                   [](Strategy strategy) { return info_of(strategy).hybrid; });
  if (hybrid == kept.strategies.end()) return kept;
  kept.shard_groups = fitting(space.shard_groups, prober.allowed(), [&](std::int64_t group) {
    return over(kept.batches,
                [&](const Batch& batch) { return prober.least_bytes(*hybrid, group, batch); });
  });
  return kept;
}

}  // namespace shardwright::tuner
