// SPDX-License-Identifier: Apache-2.0
#include "exec/sharding.h"

#include <algorithm>

#include "exec/communicator.h"
#include "sim/core/check.h"

namespace shardwright::exec {

ShardingKind Sharding::kind_of(Strategy strategy) {
  switch (strategy) {
    case Strategy::kSingle:
    case Strategy::kDdp:
      return ShardingKind::kReplicated;
    case Strategy::kZero1:
      return ShardingKind::kOptimizerState;
    case Strategy::kZero2:
      return ShardingKind::kGradients;
    default:
      return ShardingKind::kParameters;
  }
}

bool Sharding::separates_norms(Strategy strategy) {
  return strategy == Strategy::kYafsdp || strategy == Strategy::kYafsdpZero2;
}

bool Sharding::reshards(Strategy strategy) {
  return kind_of(strategy) == ShardingKind::kParameters && strategy != Strategy::kFsdp1GradOp &&
         strategy != Strategy::kFsdp2NoReshard && strategy != Strategy::kYafsdpZero2;
}

Sharding::Sharding(const Plan& plan, const Schedule& schedule, const ParameterLayout& layout,
                   const StepMemory& memory, std::int64_t shard_rank)
    : plan_(plan),
      layout_(layout),
      kind_(kind_of(plan.strategy)),
      shard_rank_(shard_rank),
      shard_ranks_(layout.shard_ranks()),
      units_(static_cast<std::size_t>(layout.units())) {
  SHARDWRIGHT_CHECK(schedule.shard_ranks == shard_ranks_ && schedule.units() == layout.units(),
                    "a schedule of {} units for {} ranks, a layout of {} units for {}",
                    schedule.units(), schedule.shard_ranks, layout.units(), shard_ranks_);
  place_parameters(memory);
  place_states(memory);
  place_gradients(memory);
}

std::int64_t Sharding::owned_parameters(std::int32_t unit) const {
  const std::int64_t share = layout_.share(unit);
  return std::clamp<std::int64_t>(layout_.unit(unit).elements - shard_rank_ * share, 0, share);
}

Array Sharding::whole_at(void* base, DType dtype, std::int32_t unit) const {
  const ParameterUnit& u = layout_.unit(unit);
  return {advance(base, dtype, u.first_owned * shard_ranks_), dtype, u.padded};
}

Array Sharding::owned_at(void* base, DType dtype, std::int32_t unit) const {
  return {advance(base, dtype, layout_.unit(unit).first_owned), dtype, layout_.share(unit)};
}

void Sharding::place_parameters(const StepMemory& memory) {
  const bool copies = plan_.param_dtype != plan_.master_dtype;
  const DType dtype = plan_.param_dtype;
  const std::int64_t width = bytes_of(dtype);
  const std::int64_t total = layout_.padded_elements();
  const std::int64_t owned = layout_.owned_elements();
  const std::int32_t norms = layout_.norm_unit();
  void* master = memory.persistent("master parameters", bytes_of(plan_.master_dtype) * owned);
  if (kind_ != ShardingKind::kParameters) {
    void* compute = master;
    if (copies) {
      compute = memory.persistent("compute parameters", width * total);
    } else if (kind_ != ShardingKind::kReplicated) {
      // The master is the own part of the whole, so the rest was declared beside it.
      memory.persistent("compute parameters", width * (total - owned));
    }
    for (std::int32_t u = 0; u < layout_.units(); ++u) {
      UnitMemory& unit = units_[static_cast<std::size_t>(u)];
      unit.parameters = whole_at(compute, dtype, u);
      unit.owned_source = share_of(unit.parameters, shard_ranks_, shard_rank_);
      unit.owned_master = copies ? owned_at(master, plan_.master_dtype, u) : unit.owned_source;
    }
    return;
  }
  void* source = copies ? memory.persistent("sharded compute parameters", width * owned) : master;
  const std::int64_t norm_elements = layout_.unit(norms).padded;
  void* norm_buffer = memory.persistent("norm weight buffer", width * norm_elements);
  const bool reshards = Sharding::reshards(plan_.strategy);
  const std::int64_t layer = layout_.unit(1).padded;
  const std::int64_t largest = layout_.tied() ? layer : layout_.largest_unit();
  void* buffers =
      reshards ? memory.persistent("rotating weight buffers", plan_.buffers * width * largest)
               : memory.persistent("weight buffers", width * (total - norm_elements));
  void* tied = reshards && layout_.tied()
                   ? memory.persistent("tied embedding buffer", width * layout_.unit(0).padded)
                   : nullptr;
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    UnitMemory& unit = units_[static_cast<std::size_t>(u)];
    const std::int64_t padded = layout_.unit(u).padded;
    unit.owned_source = owned_at(source, dtype, u);
    unit.owned_master = owned_at(master, plan_.master_dtype, u);
    if (u == norms) {
      unit.parameters = {norm_buffer, dtype, padded};
    } else if (!reshards) {
      unit.parameters = whole_at(buffers, dtype, u);
    } else if (u == 0 && tied != nullptr) {
      unit.parameters = {tied, dtype, padded};
    } else {
      unit.parameters = {advance(buffers, dtype, (u % plan_.buffers) * largest), dtype, padded};
      unit.rotates = true;
    }
  }
}

void Sharding::place_states(const StepMemory& memory) {
  const std::int64_t owned = layout_.owned_elements();
  const DType moment = plan_.moment_dtype;
  void* moments = memory.persistent("Adam moments", 2 * bytes_of(moment) * owned);
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    UnitMemory& unit = units_[static_cast<std::size_t>(u)];
    unit.first_moment = owned_at(moments, moment, u);
    unit.second_moment = owned_at(advance(moments, moment, owned), moment, u);
  }
}

void Sharding::place_gradients(const StepMemory& memory) {
  const DType dtype = plan_.param_dtype;
  const DType reduce = plan_.reduce_dtype;
  const std::int64_t width = bytes_of(dtype);
  const std::int64_t total = layout_.padded_elements();
  const std::int64_t owned = layout_.owned_elements();
  const std::int64_t largest_any = layout_.largest_unit();
  const std::int64_t largest = layout_.tied() ? layout_.unit(1).padded : largest_any;
  const std::int32_t norms = layout_.norm_unit();
  const std::int64_t norm_elements = layout_.unit(norms).padded;

  const bool single = kind_ == ShardingKind::kReplicated;
  void* rotating = single ? memory.persistent("unit gradient buffer", width * largest)
                          : memory.persistent("rotating gradient buffers", 2 * width * largest);
  void* tied = layout_.tied() ? memory.persistent("tied embedding gradient buffer",
                                                  width * layout_.unit(0).padded)
                              : nullptr;
  void* norm_buffer = memory.persistent("norm gradient buffer", width * norm_elements);
  const bool whole_sums = single || kind_ == ShardingKind::kOptimizerState;
  // Gradients of unreplicated parameters are summed in the master's type, the others as reduced.
  const DType sum_dtype = kind_ == ShardingKind::kParameters ? plan_.master_dtype : reduce;
  void* sums = memory.persistent(whole_sums ? "gradients" : "sharded gradients",
                                 bytes_of(sum_dtype) * (whole_sums ? total : owned));
  const bool converts = reduce != dtype && !whole_sums;
  void* converted = converts
                        ? memory.persistent("reduction buffer",
                                            bytes_of(reduce) * std::max(largest_any, norm_elements))
                        : nullptr;
  const std::int64_t largest_share = largest_any / shard_ranks_;
  void* scratch = memory.declares("reduced shard")
                      ? memory.persistent("reduced shard", bytes_of(reduce) * largest_share)
                      : nullptr;
  for (std::int32_t u = 0; u < layout_.units(); ++u) {
    UnitMemory& unit = units_[static_cast<std::size_t>(u)];
    const std::int64_t padded = layout_.unit(u).padded;
    if (u == norms) {
      unit.gradient = {norm_buffer, dtype, padded};
    } else if (u == 0 && tied != nullptr) {
      unit.gradient = {tied, dtype, padded};
    } else {
      unit.gradient = {advance(rotating, dtype, single ? 0 : (u % 2) * largest), dtype, padded};
      unit.gradient_rotates = true;
    }
    unit.first_gradient = unit.gradient;
    if (whole_sums) {
      unit.reduced = whole_at(sums, sum_dtype, u);
      unit.gradient_sum = share_of(unit.reduced, shard_ranks_, shard_rank_);
      // The first micro-step of zero1 writes where the others are added.
      if (kind_ == ShardingKind::kOptimizerState && reduce == dtype) {
        unit.first_gradient = unit.reduced;
      }
    } else {
      unit.gradient_sum = owned_at(sums, sum_dtype, u);
      unit.reduced = converts ? Array{converted, reduce, padded} : unit.gradient;
    }
    unit.scratch = {scratch, reduce, layout_.share(u)};
  }
}

}  // namespace shardwright::exec
