// SPDX-License-Identifier: Apache-2.0
#include "sim/bounds/bounds.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "sim/bounds/closed_form.h"
#include "sim/core/base/numbers.h"
#include "sim/core/pipeline.h"
#include "sim/core/placement.h"
#include "sim/core/strategy.h"
#include "sim/cost/cost.h"
#include "sim/memory/memory.h"
#include "sim/memory/stage_memory.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

namespace {

/// The first of the shortest chunks with a layer of each kind that the model has, between embedding
/// and head.
ChunkContent every_kind(const Model& model) {
  std::vector<LayerKind> all;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (std::find(all.begin(), all.end(), model.kind(layer)) == all.end())
      all.push_back(model.kind(layer));
  }
  ChunkContent content;
  content.embedding = content.head = true;
  content.layers = model.layers;
  for (std::int64_t first = 0; first < model.layers; ++first) {
    std::vector<LayerKind> missing = all;
    std::int64_t layers = 0;
    while (!missing.empty() && first + layers < model.layers)
      std::erase(missing, model.kind(first + layers++));
    if (!missing.empty()) break;
    if (layers >= content.layers) continue;
    content.first_layer = first;
    content.layers = layers;
  }
  count_kinds(model, content);
  return content;
}

/// The plan on as few ranks as hold its experts, so that nothing is padded for more.
Plan on_fewest_ranks(const Plan& plan) {
  Plan few = plan;
  Parallelism& p = few.parallel;
  p.pp = 2;
  p.virtual_stages = 1;
  p.pp_schedule.reset();
  p.pp_layout.clear();
  const std::int64_t width = p.tp * p.cp;
  const std::int64_t replicas = std::max<std::int64_t>(1, (p.ep * p.etp + width - 1) / width);
  few.gpus = 2 * width * replicas;
  few.shard_group = 0;
  return few;
}

}  // namespace

std::size_t UnitBounds::KeyHash::operator()(const Key& key) const {
  std::size_t seed = ListKeyHash{}(key.list) ^ static_cast<std::size_t>(key.strategy);
  for (const std::int64_t place : key.places)
    seed ^= std::hash<std::int64_t>{}(place) + 0x9e3779b97f4a7c15ULL + (seed << 6U) + (seed >> 2U);
  return seed;
}

LeastPass UnitBounds::least(std::uint32_t block_index) {
  const Block& block = schedule_.blocks[block_index];
  LeastPass sum;
  bool overlaps_units = false;
  for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
    const Op& op = schedule_.ops[i];
    sum.host_ns += op_costs_[i].host_ns;
    op_costs_[i].host_ns = 0;
    if (op.work.kind == WorkKind::kHost) continue;
    if (op.stream == 0 || op.in_line()) sum.device_ns += op_costs_[i].alone_ns;
    if (op.stream == 0 && op.deferrable) sum.delayed_ns += op_costs_[i].alone_ns;
    overlaps_units |=
        op.stream != 0 && (!op.collective || op.collective.overlap == Overlap::kOtherMicroBatch);
  }
  const bool is_layer = block.first_unit >= 1 && block.first_unit <= schedule_.layers;
  if (overlaps_units || !is_layer) return sum;
  const auto run = [&](std::int32_t repeats) {
    schedule_.sections = {{block_index, 1, repeats}};
    return engine_.run(schedule_, op_costs_).step_ns;
  };
  sum.device_ns = std::max(sum.device_ns, run(2) - run(1));
  return sum;
}

void UnitBounds::add(const Plan& plan, const Layout& layout, const LayerPrograms& programs,
                     const ChunkContent& content, Units& units) {
  lower_chunk(model_, plan, profile_.stack, profile_.cluster, programs, content, schedule_);
  schedule_.layout = layout;
  costs_.cost_of_units(schedule_, op_costs_);
  const std::vector<Section> written = schedule_.sections;
  // Of a kind that the chunk has twice, one layer stands for both.
  std::array<std::int32_t, kLayerKinds> stands{};
  for (const ChunkSection steady : {ChunkSection::kForward, ChunkSection::kBackward}) {
    const Section& section = written[static_cast<std::size_t>(steady)];
    for (std::uint32_t b = section.first_block; b < section.first_block + section.block_count;
         ++b) {
      const Phase phase = schedule_.blocks[b].phase;
      if (phase != Phase::kForward && phase != Phase::kBackward) continue;
      const std::int32_t unit = schedule_.blocks[b].first_unit;
      const bool is_layer = unit >= 1 && unit <= content.layers;
      const std::size_t kind = is_layer ? model_.kind(content.first_layer + unit - 1).index() : 0;
      if (is_layer && stands[kind] == 0) stands[kind] = unit;
      if (is_layer && stands[kind] != unit) continue;
      Chunk& of = is_layer                        ? units.layer[kind][content.recomputed > 0]
                  : unit == 0                     ? units.embedding
                  : content.extra_predictions > 0 ? units.ending
                                                  : units.head;
      (phase == Phase::kForward ? of.forward : of.backward).add(least(b));
    }
  }
}

void UnitBounds::time_plain(const Plan& plan, const Layout& layout, Units& units) {
  const Plan few = on_fewest_ranks(plan);
  const LayerPrograms programs(model_, few, profile_.stack, profile_.cluster.gpu);
  add(few, layout, programs, every_kind(model_), units);
  if (model_.mtp_layers == 0) return;
  ChunkContent ending;
  ending.head = true;
  ending.extra_predictions = model_.mtp_layers;
  add(few, layout, programs, ending, units);
}

void UnitBounds::time_recomputed(const Plan& plan, const Layout& layout, Units& units) {
  Plan few = on_fewest_ranks(plan);
  few.ckpt_layers = model_.layers;
  few.ckpt_stride = 1;
  const LayerPrograms programs =
      LayerPrograms::recomputed_layers(model_, few, profile_.stack, profile_.cluster.gpu);
  ChunkContent content = every_kind(model_);
  content.embedding = content.head = false;
  content.recomputed = content.layers;
  add(few, layout, programs, content, units);
}

UnitBounds::Units UnitBounds::units(const Plan& plan) {
  const Layout layout = layout_of(plan, profile_.cluster);
  // Between reductions all that is summed in buckets is alike.
  const bool one_kind =
      profile_.stack.optimizer.bucketed && info_of(plan.strategy).shards != Sharded::kParameters;
  const auto key_of = [&](const Plan& of) {
    return Key{ListKey(of),
               one_kind ? Strategy::kSingle : plan.strategy,
               {layout.domain, layout.members_in_domain(CommGroup::kTensor),
                layout.members_in_domain(CommGroup::kContext),
                layout.members_in_domain(CommGroup::kExpert), layout.ranks > 1}};
  };
  const Plan plain = without_recomputation(plan);
  const auto [of_plain, is_new] = plain_.try_emplace(key_of(plain));
  if (is_new) time_plain(plain, layout, of_plain->second);
  Units units = of_plain->second;
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return units;
  const auto [again, is_again_new] = recomputed_.try_emplace(key_of(plan));
  if (is_again_new) time_recomputed(plan, layout, again->second);
  for (std::size_t kind = 0; kind < kLayerKinds; ++kind)
    units.layer[kind][true] = again->second.layer[kind][true];
  return units;
}

UnitBounds::Chunk UnitBounds::of(const Units& known, const ChunkContent& content) const {
  Chunk sum;
  const auto add = [&](const Chunk& unit, std::int64_t times) {
    sum.forward.add(unit.forward, times);
    sum.backward.add(unit.backward, times);
  };
  add(known.embedding, content.embedding ? 1 : 0);
  for (std::int64_t i = 0; i < content.layers; ++i) {
    add(known.layer[model_.kind(content.first_layer + i).index()][i < content.recomputed], 1);
  }
  const bool whole_ending = content.head && content.extra_predictions > 0 &&
                            content.extra_predictions == model_.mtp_layers;
  const Chunk& head = whole_ending ? known.ending : known.head;
  add(head, content.head ? 1 : 0);
  if (content.head) sum.head_delayed_ns = head.backward.delayed_ns;
  // A module of multi-token prediction holds a layer like the last one.
  if (!whole_ending) add(known.layer[model_.mtp_kind().index()][false], content.extra_predictions);
  return sum;
}

struct Bounds::State {
  State(const Model& m, const profiles::Profile& p, ProgramCache& cache)
      : model(m), profile(p), programs(cache), costs(p), memory(m, p, cache), passes(m, p) {}

  const Model& model;
  const profiles::Profile& profile;
  ProgramCache& programs;
  CostModel costs;
  StageMemory memory;
  UnitBounds passes;
  Schedule none, all;
  std::vector<OpCost> none_costs, all_costs;
  StretchFinder finder;
  StepStretches stretches;        // of `none`
  std::optional<Plan> none_plan;  // what `none` was lowered from

  /// Families that differ in what they recompute share the schedule without checkpoints.
  void lower_none(Plan plan) {
    plan.ckpt_layers = 0;
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
    if (none_plan == plan) return;
    none_plan.reset();
    lower_with(plan, none, none_costs);
    stretches = finder.find(none, none_costs);
    none_plan = plan;
  }

  /// Of stages up to the first one where more than `most` is alive.
  Bytes fullest_bytes(const Plan& plan, const std::vector<ChunkContent>& parts, Bytes most) {
    Bytes fullest = 0;
    for (const MemoryLevel& stage :
         memory.least_levels(plan, parts, StageMemory::Stages::kFullest, most))
      fullest = std::max(fullest, least_reserved_bytes(stage.peak(), plan, profile.stack));
    return fullest;
  }

  void lower_with(const Plan& plan, Schedule& schedule, std::vector<OpCost>& op_costs) {
    lower(model, plan, profile.stack, profile.cluster, programs.at(plan), schedule);
    costs.cost(schedule, op_costs);
  }
};

Bounds::Bounds(const Model& model, const profiles::Profile& profile, ProgramCache& programs)
    : state_(std::make_unique<State>(model, profile, programs)) {}
Bounds::~Bounds() = default;

std::vector<double> Bounds::least_s_of_family(const Plan& plan) {
  State& s = *state_;
  Plan edge = plan;
  edge.ckpt_layers = 0;
  check_plan(edge, s.model, s.profile.cluster.gpus_per_node);
  edge.ckpt_stride = 1;
  s.lower_none(edge);
  const bool recomputes = plan.recompute != Recompute::kNone;
  if (recomputes) {
    edge.ckpt_layers = s.model.layers;
    s.lower_with(edge, s.all, s.all_costs);
  }
  const Schedule& all = recomputes ? s.all : s.none;
  const std::vector<OpCost>& all_costs = recomputes ? s.all_costs : s.none_costs;

  const ClosedTime time(s.stretches, s.none, s.none_costs, all, all_costs);
  const std::int64_t most = recomputes ? ceil_div(s.model.layers, plan.ckpt_stride) : 0;
  const double scale = scale_factor(s.profile, plan);
  std::vector<double> least_s;
  for (std::int64_t k = 0; k <= most; ++k) least_s.push_back(seconds_of(time.bound_ns(k)) * scale);
  return least_s;
}

double Bounds::least_pipeline_s(const Plan& plan) {
  State& s = *state_;
  return pipeline_bound_s(s.model, s.profile, plan, s.passes) * scale_factor(s.profile, plan);
}

Bytes Bounds::least_bytes(const Plan& plan) {
  State& s = *state_;
  const std::vector<ChunkContent> parts = partition_layers(s.model, plan, s.profile.stack);
  return runtime_bytes(s.profile, plan) + s.fullest_bytes(plan, parts, StageMemory::kUnlimited);
}

Bytes Bounds::least_bytes_or_too_many(const Plan& plan) {
  State& s = *state_;
  const Bytes runtime = runtime_bytes(s.profile, plan);
  const std::vector<ChunkContent> parts = partition_layers(s.model, plan, s.profile.stack);
  const Bytes held = s.memory.held_bytes(plan, parts) + runtime;
  const Bytes most = s.profile.cluster.memory_bytes_per_rank(plan.gpus);
  return held > most ? held : runtime + s.fullest_bytes(plan, parts, most - runtime);
}

namespace {

/// The inequality of the header; stages are added one by one.
class PipelineBound {
 public:
  explicit PipelineBound(const PipelineShape& shape)
      : ordered_(shape.info().order == ChunkOrder::kLoop),
        splits_(shape.info().splits_backward),
        passes_(shape.passes()) {}

  /// `deferred_ns`: of the step, what the chunk computes after its passes.
  void add(const UnitBounds::Chunk& chunk, Nanoseconds deferred_ns) {
    const Nanoseconds forward = chunk.forward.least_ns(), backward = chunk.backward.least_ns();
    const Nanoseconds delayed = std::min(backward, chunk.backward.delayed_ns);
    if (is_first_) {
      first_forward_ = forward;
      first_backward_ = splits_ ? backward - delayed : backward;
      is_first_ = false;
    }
    busy_ += forward + backward;
    delayed_ += delayed;
    deferred_ += deferred_ns;
  }

  void end_stage() {
    const Nanoseconds arrives = ordered_ ? forward_before_ : 0;
    const Nanoseconds returns =
        ordered_ ? std::max<Nanoseconds>(0, backward_before_ - deferred_) : 0;
    if (splits_) {
      least_ = std::max(
          {least_, arrives + passes_ * busy_, arrives + passes_ * (busy_ - delayed_) + returns});
    } else {
      least_ = std::max(least_, arrives + passes_ * busy_ + returns);
    }
    forward_before_ += first_forward_;
    backward_before_ += first_backward_;
    busy_ = delayed_ = deferred_ = 0;
    is_first_ = true;
  }

  Nanoseconds least_ns() const { return least_; }

 private:
  bool ordered_, splits_, is_first_ = true;
  Nanoseconds passes_, least_ = 0, busy_ = 0, delayed_ = 0, deferred_ = 0;
  Nanoseconds first_forward_ = 0, first_backward_ = 0, forward_before_ = 0, backward_before_ = 0;
};

}  // namespace

double pipeline_bound_s(const Model& model, const profiles::Profile& profile, const Plan& plan,
                        UnitBounds& passes) {
  const PipelineShape shape = pipeline_shape(plan);
  const std::vector<ChunkContent> parts = partition_layers(model, plan, profile.stack);
  const UnitBounds::Units units = passes.units(plan);
  const std::int64_t most = profile.stack.parallel.userbuffers.deferred_head_gradients;
  PipelineBound bound(shape);
  for (std::int32_t stage = 0; stage < shape.stages; ++stage) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const UnitBounds::Chunk chunk = passes.of(units, of_chunk(parts, shape, {stage, c}));
      bound.add(chunk, std::min(most, plan.grad_accum) * chunk.head_delayed_ns);
    }
    bound.end_stage();
  }
  return seconds_of(bound.least_ns()) + profile.stack.host.step_s;
}

}  // namespace shardwright::sim
