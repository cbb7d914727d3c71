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
std::int64_t largest_gradient(const ShardingFacts& facts, const UnitSizes& sizes) {
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

}  // namespace

void list_persistent(Schedule& schedule) {
  const ShardingFacts& f = schedule.sharding;
  const UnitSizes& sizes = schedule.unit_sizes;
  const std::int64_t dense = sizes.total(schedule.layers);
  const std::int64_t experts = sizes.moe_layers * sizes.experts;
  const std::int64_t total = dense + experts;
  const std::int64_t owned =
      dense / schedule.shard_ranks() +
      (experts == 0 ? 0 : experts / schedule.group(CommGroup::kExpertData).size);
  const std::int64_t width = bytes_of(f.parameter_dtype);
  const std::int64_t rotating = largest_rotating(sizes);
  schedule.persistent.clear();
  const auto list = [&](Persistent kind, Bytes bytes) {
    if (bytes > 0) schedule.persistent.push_back({kind, bytes});
  };
  if (f.keeps_optimizer) {
    list(Persistent::kMaster, bytes_of(f.master_dtype) * owned);
    list(Persistent::kMoments, 2 * bytes_of(f.moment_dtype) * owned);
  }
  // Where the host has the master, what is computed with is a copy of its own.
  const bool copies = f.has_compute_copy() || !f.keeps_optimizer;
  const bool keeps = f.keeps_parameters || !f.keeps_optimizer;
  if (keeps && f.shards != Sharded::kParameters) {
    // Without a copy the master is the own part of the whole, and the rest lies beside it.
    list(Persistent::kWholeParameters, width * (copies ? total : total - owned));
  } else if (keeps && copies) {
    list(Persistent::kShardedParameters, width * owned);
  }
  if (f.keeps_sums) {
    const bool whole = f.sums_whole_gradients();
    list(whole ? Persistent::kWholeGradients : Persistent::kShardedGradients,
         bytes_of(f.sum_dtype) * (whole ? total : owned));
  }
  if (f.weights.rotate()) {
    list(Persistent::kRotatingWeights, f.weights.count * width * rotating);
    if (sizes.tied()) list(Persistent::kTiedEmbeddingWeights, width * sizes.embedding);
  } else if (f.weights.every_unit()) {
    list(Persistent::kGatheredWeights, width * (total - sizes.norms));
  }
  if (f.weights.count != 0) list(Persistent::kNormWeights, width * sizes.norms);
  if (f.gradients.rotate()) {
    const DType written = gradient_dtype(schedule);
    const std::int64_t each = bytes_of(written);
    list(Persistent::kRotatingGradients, f.gradients.count * each * largest_gradient(f, sizes));
    if (sizes.tied()) list(Persistent::kTiedEmbeddingGradients, each * sizes.embedding);
    list(Persistent::kNormGradients, each * sizes.norms);
    if (f.reduce_dtype != written && !f.sums_whole_gradients()) {
      list(Persistent::kReductionBuffer,
           bytes_of(f.reduce_dtype) * std::max(sizes.largest(), sizes.norms));
    }
  }
  if (f.reduces_through_shard) {
    list(Persistent::kReducedShard,
         bytes_of(f.reduce_dtype) * (sizes.largest() / schedule.shard_ranks()));
  }
  list(Persistent::kGradientBuckets, f.gradient_bucket_bytes);
  list(Persistent::kAllReduceBuckets, f.all_reduce_bucket_bytes);
  list(Persistent::kWorkspace, f.workspace_bytes);
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
  std::int64_t elements = 0;
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    first_.push_back(elements);
    elements += schedule.unit_elements(u);
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
  const auto leads = [](Persistent kind) {
    return kind == Persistent::kMaster || kind == Persistent::kWholeParameters;
  };
  for (const PersistentTensor& tensor : schedule.persistent) {
    if (leads(tensor.kind)) place(tensor);
  }
  for (const PersistentTensor& tensor : schedule.persistent) {
    if (!leads(tensor.kind)) place(tensor);
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
  const std::int64_t owned = schedule.unit_sizes.total(schedule.layers) / ranks_;
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
  const std::int64_t rotating = largest_gradient(f, sizes);
  const bool converts = offset(Persistent::kReductionBuffer) != PlacedArray::kNowhere;
  const bool has_scratch = offset(Persistent::kReducedShard) != PlacedArray::kNowhere;
  for (std::int32_t u = 0; u < schedule.units(); ++u) {
    UnitPlacement& unit = units_[static_cast<std::size_t>(u)];
    const std::int64_t padded = schedule.unit_elements(u);
    const std::int64_t share = padded / ranks_;
    const std::int64_t first = first_[static_cast<std::size_t>(u)];
    const bool is_layer = u > 0 && u <= schedule.layers;
    if (!f.gradients.rotate() || (f.sums_in_backward && is_layer)) {
      unit.gradient = at(Persistent::kWholeGradients, f.sum_dtype, first, padded);
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
      unit.reduced = at(Persistent::kWholeGradients, f.sum_dtype, first, padded);
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
