// SPDX-License-Identifier: Apache-2.0
#include "sim/core/placement.h"

#include <algorithm>

#include "sim/core/arena.h"
#include "sim/core/base/check.h"

namespace shardwright {

namespace {

/// The largest unit that takes its turn in rotating buffers.
std::int64_t largest_rotating(const UnitSizes& sizes) {
  return sizes.tied() ? sizes.layer : sizes.largest();
}

/// The same of gradients; 0 where the only one is a tied embedding's, which has its own.
std::int64_t largest_gradient(const Schedule& schedule) {
  const ShardingFacts& facts = schedule.sharding;
  const UnitSizes& sizes = schedule.unit_sizes;
  if (facts.trained >= 0) return facts.largest_trained;
  if (!facts.sums_in_backward) return largest_rotating(sizes);
  return sizes.tied() ? 0 : std::max(sizes.embedding, sizes.head);
}

/// What backward writes: without an operation that casts, what is reduced.
DType gradient_dtype(const Schedule& schedule) {
  const ShardingFacts& f = schedule.sharding;
  const bool casts = std::any_of(schedule.ops.begin(), schedule.ops.end(),
                                 [](const Op& op) { return op.kind == OpKind::kCastGradient; });
  return casts ? f.parameter_dtype : f.reduce_dtype;
}

/// Parameters of a chunk, and what this rank owns of them.
struct HeldParameters {
  explicit HeldParameters(const Schedule& schedule) {
    const UnitSizes& sizes = schedule.unit_sizes;
    const std::int64_t ranks = schedule.shard_ranks();
    const std::int64_t expert_ranks = schedule.expert_shard_ranks();
    const std::int64_t dense = sizes.total(schedule.layers), experts = sizes.all_experts();
    const auto owned_of = [&](std::int64_t of_dense, std::int64_t of_experts) {
      return of_dense / ranks + (of_experts == 0 ? 0 : of_experts / expert_ranks);
    };
    const std::int64_t dense_layers = dense - sizes.embedding - sizes.head - sizes.norms;
    all = dense + experts;
    owned = owned_of(dense, experts);
    layers = dense_layers + experts;
    layers_owned = owned_of(dense_layers, experts);
    largest_owned = owned_of(sizes.largest(), 0);
    if (sizes.moe_layers > 0)
      largest_owned = std::max(largest_owned, owned_of(sizes.moe_layer, sizes.experts));
  }
  std::int64_t all = 0, owned = 0;
  std::int64_t layers = 0, layers_owned = 0;  // of these
  std::int64_t largest_owned = 0;             // of a unit
};

}  // namespace

void list_persistent(Schedule& schedule) {
  const ShardingFacts& f = schedule.sharding;
  const UnitSizes& sizes = schedule.unit_sizes;
  const HeldParameters held(schedule);
  const bool frozen = f.trained >= 0;
  const std::int64_t trained = frozen ? f.trained : held.all;
  const std::int64_t trained_owned = frozen ? f.trained_owned : held.owned;
  const std::int64_t width = bytes_of(f.parameter_dtype);
  const std::int64_t rotating = largest_rotating(sizes);
  const auto times = [](double each, std::int64_t count) {
    return static_cast<Bytes>(each * static_cast<double>(count));
  };
  // What layers' parameters take more, or less.
  const double wide = static_cast<double>(frozen ? bytes_of(DType::kBf16) : width);
  const double layer_more = f.layer_parameter_bytes > 0 ? f.layer_parameter_bytes - wide : 0;
  schedule.persistent.clear();
  const auto list = [&](Persistent kind, Bytes bytes) {
    if (bytes > 0) schedule.persistent.push_back({kind, bytes});
  };
  const Bytes master = bytes_of(f.master_dtype) * trained_owned;
  const Bytes moments = times(f.moment_bytes, trained_owned);
  if (f.keeps_optimizer) {
    list(Persistent::kMaster, master);
    list(Persistent::kMoments, moments);
  }
  // Where the host has the master, what is computed with is a copy of its own.
  const bool copies = f.has_compute_copy() || !f.keeps_optimizer;
  const bool keeps = f.keeps_parameters || !f.keeps_optimizer;
  // Beside adapters no master stands for what is frozen, which is kept in 16 bits.
  const auto frozen_bytes = [&](std::int64_t all, std::int64_t layers) {
    return frozen ? bytes_of(DType::kBf16) * all + times(layer_more, layers) : 0;
  };
  if (f.shards != Sharded::kParameters) {
    // Without a copy the master is the own part of the whole, and the rest lies beside it.
    list(Persistent::kWholeParameters,
         frozen_bytes(held.all, held.layers) +
             (keeps ? width * (copies ? trained : trained - trained_owned) +
                          (frozen ? 0 : times(layer_more, held.layers))
                    : 0));
  } else {
    list(Persistent::kShardedParameters, frozen_bytes(held.owned, held.layers_owned) +
                                             (keeps && copies ? width * trained_owned : 0));
  }
  if (f.keeps_sums) {
    const bool whole = f.sums_whole_gradients();
    list(whole ? Persistent::kWholeGradients : Persistent::kShardedGradients,
         bytes_of(f.sum_dtype) * (whole ? trained : trained_owned) +
             times(f.small_gradient_bytes, trained));
  }
  if (f.weights.rotate()) {
    list(Persistent::kRotatingWeights, f.weights.count * width * rotating);
    if (sizes.tied()) list(Persistent::kTiedEmbeddingWeights, width * sizes.embedding);
  } else if (f.weights.every_unit()) {
    const double gathered_more = layer_more < 0 ? layer_more : 0;  // copies are made of it
    list(Persistent::kGatheredWeights, width * (held.all - sizes.norms + (frozen ? trained : 0)) +
                                           times(gathered_more, held.layers));
  }
  if (f.weights.count != 0) list(Persistent::kNormWeights, width * sizes.norms);
  if (f.gradients.rotate()) {
    const DType written = gradient_dtype(schedule);
    const std::int64_t each = bytes_of(written);
    const std::int64_t largest = largest_gradient(schedule);
    list(Persistent::kRotatingGradients, f.gradients.count * each * largest);
    if (!frozen) {
      if (sizes.tied()) list(Persistent::kTiedEmbeddingGradients, each * sizes.embedding);
      list(Persistent::kNormGradients, each * sizes.norms);
    }
    if (f.reduce_dtype != written && !f.sums_whole_gradients()) {
      list(Persistent::kReductionBuffer,
           bytes_of(f.reduce_dtype) * (frozen ? largest : std::max(sizes.largest(), sizes.norms)));
    }
  }
  list(Persistent::kTiedEmbeddingGradients, bytes_of(f.sum_dtype) * sizes.head_gradient);
  if (f.reduces_through_shard) {
    list(Persistent::kReducedShard,
         bytes_of(f.reduce_dtype) * (sizes.largest() / schedule.shard_ranks()));
  }
  list(Persistent::kGradientBuckets, f.gradient_bucket_bytes);
  list(Persistent::kAllReduceBuckets, f.all_reduce_bucket_bytes);
  if (!f.keeps_optimizer) {
    const double each = static_cast<double>(bytes_of(f.master_dtype)) + f.moment_bytes;
    list(Persistent::kOptimizerPieces,
         std::min(master + moments, 2 * times(each, held.largest_owned)));
  }
  list(Persistent::kWorkspace, f.workspace_bytes);
}

namespace {

/// Whether collectives of the shard group read or write the tensor. Of the master they do where it
/// is what is computed with.
bool is_collective(Persistent kind) {
  switch (kind) {
    case Persistent::kMoments:
    case Persistent::kGradientBuckets:
    case Persistent::kAllReduceBuckets:
    case Persistent::kOptimizerPieces:
    case Persistent::kWorkspace:
      return false;
    default:
      return true;
  }
}

}  // namespace

void set_workspace(Schedule& schedule, Bytes bytes) {
  schedule.sharding.workspace_bytes = bytes;
  std::erase_if(schedule.persistent, [](const PersistentTensor& tensor) {
    return tensor.kind == Persistent::kWorkspace;
  });
  if (bytes > 0) schedule.persistent.push_back({Persistent::kWorkspace, bytes});
}

Bytes persistent_bytes(const Schedule& schedule) {
  Bytes bytes = 0;
  for (const PersistentTensor& tensor : schedule.persistent) {
    bytes += round_up(tensor.bytes, kArenaAlignment);
  }
  return bytes;
}

Bytes static_memory_bytes(const Schedule& schedule) {
  return persistent_bytes(schedule) + plan_arena(schedule).size_bytes;
}

Placement::Placement(const Schedule& schedule, std::int64_t shard_rank)
    : ranks_(schedule.shard_ranks()), units_(static_cast<std::size_t>(schedule.units())) {
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    first_.push_back(elements_);
    elements_ += schedule.unit_elements(u);
  }
  place_tensors(schedule);
  place_parameters(schedule, shard_rank);
  place_states(schedule);
  place_gradients(schedule, shard_rank);
}

void Placement::place_tensors(const Schedule& schedule) {
  offsets_.fill(PlacedArray::kNowhere);
  const auto place = [&](const PersistentTensor& tensor) {
    offsets_[static_cast<std::size_t>(tensor.kind)] = size_bytes_;
    size_bytes_ += round_up(tensor.bytes, kArenaAlignment);
  };
  // Whole parameters of which the own part is the master are one array in two tensors.
  const auto turn_of = [&](Persistent kind) {
    if (kind == Persistent::kMaster) return schedule.sharding.has_compute_copy() ? 2 : 0;
    if (kind == Persistent::kWholeParameters) return 0;
    return is_collective(kind) ? 1 : 2;
  };
  for (int turn = 0; turn <= 2; ++turn) {
    for (const PersistentTensor& tensor : schedule.persistent) {
      if (turn_of(tensor.kind) == turn) place(tensor);
    }
    if (turn == 1) collective_bytes_ = size_bytes_;
  }
}

PlacedArray Placement::at(Persistent kind, DType dtype, std::int64_t first,
                          std::int64_t size) const {
  if (size == 0) return {0, dtype, 0};
  SHARDWRIGHT_CHECK(offset(kind) != PlacedArray::kNowhere, "the schedule keeps no {}",
                    name_of(kind));
  return {offset(kind) + first * bytes_of(dtype), dtype, size};
}

void Placement::place_parameters(const Schedule& schedule, std::int64_t shard_rank) {
  const ShardingFacts& f = schedule.sharding;
  const UnitSizes& sizes = schedule.unit_sizes;
  const DType dtype = f.parameter_dtype;
  const bool copies = f.has_compute_copy();
  const std::int64_t rotating = largest_rotating(sizes);
  const std::int64_t gathered = first_[static_cast<std::size_t>(schedule.norm_unit())];
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    UnitPlacement& unit = units_[static_cast<std::size_t>(u)];
    const std::int64_t padded = schedule.unit_elements(u);
    const std::int64_t share = padded / ranks_;
    const std::int64_t first = first_[static_cast<std::size_t>(u)];
    if (f.shards != Sharded::kParameters) {
      const Persistent whole = copies ? Persistent::kWholeParameters : Persistent::kMaster;
      unit.parameters = at(whole, dtype, first, padded);
      unit.owned_source = unit.parameters.part(shard_rank * share, share);
      unit.owned_master = copies ? at(Persistent::kMaster, f.master_dtype, first / ranks_, share)
                                 : unit.owned_source;
      continue;
    }
    const Persistent source = copies ? Persistent::kShardedParameters : Persistent::kMaster;
    unit.owned_source = at(source, dtype, first / ranks_, share);
    unit.owned_master = at(Persistent::kMaster, f.master_dtype, first / ranks_, share);
    if (u == schedule.norm_unit()) {
      unit.parameters = at(Persistent::kNormWeights, dtype, first - gathered, padded);
    } else if (f.weights.every_unit()) {
      unit.parameters = at(Persistent::kGatheredWeights, dtype, first, padded);
    } else if (u == 0 && sizes.tied()) {
      unit.parameters = at(Persistent::kTiedEmbeddingWeights, dtype, 0, padded);
    } else {
      unit.parameters =
          at(Persistent::kRotatingWeights, dtype, u % f.weights.count * rotating, padded);
    }
  }
}

void Placement::place_states(const Schedule& schedule) {
  const DType dtype = schedule.sharding.moment_dtype;
  const std::int64_t owned = elements_ / ranks_;
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    UnitPlacement& unit = units_[static_cast<std::size_t>(u)];
    const std::int64_t first = first_[static_cast<std::size_t>(u)] / ranks_;
    const std::int64_t share = schedule.unit_elements(u) / ranks_;
    unit.first_moment = at(Persistent::kMoments, dtype, first, share);
    unit.second_moment = at(Persistent::kMoments, dtype, owned + first, share);
  }
}

void Placement::place_gradients(const Schedule& schedule, std::int64_t shard_rank) {
  const ShardingFacts& f = schedule.sharding;
  const UnitSizes& sizes = schedule.unit_sizes;
  const DType dtype = gradient_dtype(schedule);
  const std::int64_t rotating = largest_gradient(schedule);
  const bool converts = offset(Persistent::kReductionBuffer) != PlacedArray::kNowhere;
  const bool has_scratch = offset(Persistent::kReducedShard) != PlacedArray::kNowhere;
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    UnitPlacement& unit = units_[static_cast<std::size_t>(u)];
    const bool is_use = u == schedule.head_unit() && sizes.head_gradient > 0;
    const std::int64_t padded = is_use ? sizes.head_gradient : schedule.unit_elements(u);
    const std::int64_t share = padded / ranks_;
    const std::int64_t first = first_[static_cast<std::size_t>(u)];
    const bool is_layer = u > 0 && u <= schedule.layers;
    const auto sum = [&] {
      return is_use ? at(Persistent::kTiedEmbeddingGradients, f.sum_dtype, 0, padded)
                    : at(Persistent::kWholeGradients, f.sum_dtype, first, padded);
    };
    if (!f.gradients.rotate() || (f.sums_in_backward && is_layer)) {
      unit.gradient = sum();
    } else if (u == schedule.norm_unit()) {
      unit.gradient = at(Persistent::kNormGradients, dtype, 0, padded);
    } else if (u == 0 && sizes.tied()) {
      unit.gradient = at(Persistent::kTiedEmbeddingGradients, dtype, 0, padded);
    } else {
      unit.gradient =
          at(Persistent::kRotatingGradients, dtype, u % f.gradients.count * rotating, padded);
    }
    unit.first_gradient = unit.gradient;
    if (f.sums_whole_gradients()) {
      unit.reduced = sum();
      unit.gradient_sum = unit.reduced.part(shard_rank * share, share);
      // The first micro-batch writes where the others are added.
      if (f.reduce_dtype == dtype) unit.first_gradient = unit.reduced;
    } else {
      unit.gradient_sum = at(Persistent::kShardedGradients, f.sum_dtype, first / ranks_, share);
      unit.reduced =
          converts ? at(Persistent::kReductionBuffer, f.reduce_dtype, 0, padded) : unit.gradient;
    }
    if (has_scratch) unit.scratch = at(Persistent::kReducedShard, f.reduce_dtype, 0, share);
  }
}

}  // namespace shardwright
