// SPDX-License-Identifier: Apache-2.0
// The knobs of a plan as they are given and kept: on a command line, in a run file, in the
// environment, in a plan file, in a table of published runs.
//
// One table (knob_table.cc) says for each knob what it is called in each place, which values it
// takes, and what --help says of it; flags, plan files and ledgers are read by that table. A new
// knob is a field of Plan, one of GivenKnobs and a row there. What was given is kept apart from
// the plan, because a search holds fixed exactly what was given and a plan file is changed by
// exactly that.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/base/parse_value.h"
#include "sim/core/plan.h"

namespace shardwright {

class CsvRow;
class JsonReader;

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
  std::optional<double> expert_capacity;
  std::optional<ExpertLoad> expert_load;
  std::optional<CudaGraphs> cuda_graphs;
  std::optional<bool> sp, ep_overlap, fp8_params;
  std::optional<PipelineKind> pp_schedule;
  std::optional<ContextComm> cp_comm;
  std::optional<Dispatcher> dispatcher;
  std::optional<TensorOverlap> tp_overlap;
  std::optional<Precision> precision;
  std::optional<Fp8Recipe> fp8_recipe;
  std::optional<Optimizer> optimizer;
  std::optional<Quantize> quantize;
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
  std::optional<std::int64_t> shard_group, seq_len, packed_length, micro_batch, grad_accum;
  std::optional<CheckpointedLayers> ckpt_layers;
  std::optional<Recomputation> recompute;
  std::optional<DType> param_dtype, reduce_dtype, master_dtype, moment_dtype;
  std::optional<int> buffers, prefetch;
  std::optional<AttentionKind> attention;
  std::optional<std::int64_t> loss_chunks;
  std::optional<AllocatorKind> allocator;
  std::optional<Offloading> offload;
  GivenParallelism parallel;
  std::optional<bool> deterministic;
  std::optional<std::int64_t> sum_features, sum_uses;
};

/// What is true of a knob, as a set of bits.
enum KnobTraits : std::uint8_t {
  kSearched = 1,    // by a verb that searches, where it is not given
  kFilled = 2,      // its column is never empty
  kTextSays = 4,    // what is written as text says it though it has its default
  kFileSays = 8,    // and so does a plan file
  kZeroInFile = 16  // which says with a 0 what a flag leaves out
};

/// What a row of the table says of a knob.
struct KnobFacts {
  std::string_view name;            // "grad-accum"; plan files write it with '_'
  std::string_view column = {};     // of ledgers; empty: none, or one with its own words
  std::string what = {};            // what --help says
  std::string_view otherwise = {};  // what it calls the default; empty: nothing
  unsigned traits = 0;              // of KnobTraits
  CountRange range = {};            // of a number
  std::string type = {};            // of the value, as --help shows it

  bool is(KnobTraits trait) const { return (traits & trait) != 0; }
};

/// A row with what reads and writes it. Without `read` it is a knob of plan files alone.
struct PlanKnob : KnobFacts {
  bool divides = false;  // of Plan::parallel or Plan::numerics
  /// Throws Error that calls the knob `given_as`: "--grad-accum", "grad-accum in run.ini".
  std::function<void(GivenKnobs& knobs, std::string_view given_as, const std::string& text)> read =
      {};
  /// The text that read() takes for this plan's value; empty where a plan says it otherwise.
  std::function<std::string(const Plan& plan)> write = {};
  /// Sets the plan to what was given; empty where with_knobs does it, together with other knobs.
  std::function<void(const GivenKnobs& knobs, Plan& plan)> take = {};
  /// From and to the object of a plan file. Throws Error naming file and key.
  std::function<void(const JsonReader& object, Plan& plan)> from_file = {};
  std::function<void(const Plan& plan, nlohmann::ordered_json& object)> to_file = {};
  /// From `column`, which must be there. Throws Error naming file, line and column.
  std::function<void(const CsvRow& row, Plan& plan)> from_row = {};
};

/// In the order of plan files and of --help.
const std::vector<PlanKnob>& plan_knobs();
/// By its name, which must be one of the table.
const PlanKnob& plan_knob(std::string_view name);

/// Tokens of a sequence where nobody says, for every verb that predicts: as many as the model was
/// trained with, at most 8192; to fine-tune at most 2048, for examples are short.
std::int64_t usual_seq_len(const Model& model, bool fine_tunes);

/// The plan with every knob that was given but the strategy. A number of checkpointed layers
/// without a policy means full recomputation, a policy without a number all `layers`, 0 layers no
/// recomputation; more buffers are filled ahead unless the prefetch distance is given, too.
Plan with_knobs(Plan plan, const GivenKnobs& knobs, std::int64_t layers);

/// The plan with what was given of Plan::parallel and Plan::numerics.
void take_parallelism(const GivenParallelism& given, Plan& plan);

}  // namespace shardwright
