// SPDX-License-Identifier: Apache-2.0
// The knobs of a plan as people give them: on a command line, in a run file, in the environment.
//
// One table says for each knob what it is called, how its text is read and how it is written again;
// a flag and a line of a run file are two names for the same entry. What was read is kept apart
// from the plan, because a search holds fixed exactly what was given and a plan file is changed by
// exactly that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/plan.h"

namespace shardwright {

/// "ckpt-layers": a number of layers, or all of them.
struct CheckpointedLayers {
  bool all = false;
  std::int64_t count = 0;

  std::int64_t of(std::int64_t layers) const { return all ? layers : count; }
};

/// What checkpointed layers recompute.
struct Recomputation {
  Recompute recompute = Recompute::kFull;
  std::uint16_t pieces = 0;  // under Recompute::kPieces
  bool operator==(const Recomputation&) const = default;
};

/// Of Plan::parallel and Plan::numerics, what was given.
struct GivenParallelism {
  std::optional<std::int64_t> tp, pp, virtual_stages, cp, ep, etp, lora;
  std::optional<bool> sp, ep_overlap, fp8_params;
  std::optional<PipelineKind> pp_schedule;
  std::optional<ContextComm> cp_comm;
  std::optional<Dispatcher> dispatcher;
  std::optional<TensorOverlap> tp_overlap;
  std::optional<Precision> precision;
  std::optional<Fp8Recipe> fp8_recipe;
  std::optional<Optimizer> optimizer;
  std::optional<std::string> pp_layout, rank_order;
};

/// Activations of some layers, or the optimizer's state, are kept in the host's memory.
struct Offloading {
  Offload what = Offload::kNone;
  std::int64_t layers = 0;
};

/// The knobs that were given.
struct GivenKnobs {
  std::vector<Strategy> strategies;  // empty: not given
  std::optional<std::int64_t> shard_group, seq_len, micro_batch, grad_accum;
  std::optional<CheckpointedLayers> ckpt_layers;
  std::optional<Recomputation> recompute;
  std::optional<DType> param_dtype, reduce_dtype, moment_dtype;
  std::optional<int> buffers, prefetch;
  std::optional<AttentionKind> attention;
  std::optional<std::int64_t> loss_chunks;
  std::optional<AllocatorKind> allocator;
  std::optional<Offloading> offload;
  GivenParallelism parallel;
  std::optional<bool> deterministic;
};

struct PlanKnob {
  std::string_view name;  // "grad-accum"
  /// Throws Error that calls the knob `given_as`: "--grad-accum", "grad-accum in run.ini".
  void (*read)(GivenKnobs& knobs, std::string_view given_as, const std::string& text);
  /// The text that read() takes for this plan's value; empty where a plan says it otherwise.
  std::string (*write)(const Plan& plan);
};

const std::vector<PlanKnob>& plan_knobs();
/// By its name, which must be one of the table.
const PlanKnob& plan_knob(std::string_view name);

/// Tokens of a sequence where nobody says: 2048, or what the model takes.
std::int64_t usual_seq_len(const Model& model);

/// The plan with every knob that was given but the strategy. A number of checkpointed layers
/// without a policy means full recomputation, a policy without a number all `layers`, 0 layers no
/// recomputation; more buffers are filled ahead unless the prefetch distance is given, too.
Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers);

}  // namespace shardwright
