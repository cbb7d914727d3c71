// SPDX-License-Identifier: Apache-2.0
#include "sim/predict.h"

#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/accounting.h"
#include "sim/bounds/bounds.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/executed_plan.h"
#include "sim/core/features.h"
#include "sim/core/placement.h"
#include "sim/cost/cost.h"
#include "sim/engine/engine.h"
#include "sim/memory/memory.h"
#include "sim/memory/stage_memory.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/pipeline/step_program.h"
#include "sim/program/layer_program.h"
#include "sim/program/low_precision.h"
#include "sim/uncertainty/intervals.h"

namespace shardwright::sim {

namespace {

/// Of a step with more micro-batches, the first, the last and this many less two of the others.
constexpr int kReplayedMicroBatches = 4;

bool expandable_segments(const Plan& plan, const Stack& stack) {
  return plan.allocator == AllocatorKind::kStack ? stack.allocator.expandable_segments
                                                 : plan.allocator == AllocatorKind::kExpandable;
}

/// What a stage takes of its device.
struct StageFootprint {
  MemoryLevel allocated;
  Bytes active_bytes = 0, reserved_bytes = 0;
  std::int64_t retries = 0;
  bool estimates_fragmentation = false;
  std::string peak_at;
};

/// The fullest stage's memory stands for all.
void fill_memory(MemoryPrediction& m, const std::vector<StageFootprint>& stages) {
  const auto fullest = std::max_element(stages.begin(), stages.end(),
                                        [](const StageFootprint& a, const StageFootprint& b) {
                                          return a.reserved_bytes < b.reserved_bytes;
                                        });
  m.estimates_fragmentation = fullest->estimates_fragmentation;
  m.peak_allocated_bytes = fullest->allocated.bytes;
  m.peak_active_bytes = fullest->active_bytes;
  m.peak_reserved_bytes = fullest->reserved_bytes;
  m.allocator_retries = fullest->retries;
  m.breakdown_bytes = fullest->allocated.by_category;
  m.peak_at = fullest->peak_at;
  m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
  m.fits = m.total_bytes <= m.usable_bytes;
}

void fill_stages(Prediction& p, const SimulatedStep& step,
                 const std::vector<StageFootprint>& footprints) {
  const MemoryPrediction& m = p.memory;
  const std::vector<std::int64_t> layers = stage_layers(pipeline_shape(p.plan), step.parts);
  for (std::size_t s = 0; s < step.stages.size(); ++s) {
    StagePrediction& stage = p.stages.emplace_back();
    stage.stage = static_cast<std::int64_t>(s);
    stage.layers = layers[s];
    stage.compute_s = step.stages[s].compute_s;
    stage.exposed_communication_s = step.stages[s].exposed_s;
    stage.host_s = step.stages[s].host_s;
    stage.optimizer_s = step.stages[s].optimizer_s;
    stage.bubble_s = step.stages[s].bubble_s;
    const MemoryLevel& allocated = footprints[s].allocated;
    stage.peak_allocated_bytes = allocated.bytes;
    stage.peak_reserved_bytes = footprints[s].reserved_bytes;
    stage.fits = stage.peak_reserved_bytes + m.runtime_bytes <= m.usable_bytes;
    std::copy(allocated.by_category.begin(), allocated.by_category.end(),
              stage.breakdown_bytes.begin());
  }
}

/// Of a replica.
double tokens_of_step(const Plan& plan) {
  return static_cast<double>(plan.seq_len * plan.micro_batch) *
         static_cast<double>(plan.grad_accum);
}

}  // namespace

double model_flops(const Model& model, const Plan& plan) {
  // Backward does each product of forward twice, for the input's and the weight's gradient; frozen
  // weights have none.
  ForwardFlops forward = forward_flops_per_token(model, plan.document_length());
  // Nobody computes what passes a full expert by.
  const double kept = std::min(1.0, plan.parallel.expert_capacity.value_or(1.0));
  if (kept < 1) {
    Model without = model;
    without.experts.per_token = 0;
    const double shared = forward_flops_per_token(without, plan.document_length()).matrices;
    forward.matrices = shared + kept * (forward.matrices - shared);
  }
  if (plan.numerics.lora > 0)
    return tokens_of_step(plan) * (2 * forward.matrices + 3 * forward.attention);
  return tokens_of_step(plan) * (3 * forward.total());
}

struct Predictor::State {
  State(Model m, profiles::Profile p)
      : model(std::move(m)),
        profile(std::move(p)),
        costs(profile),
        programs(model, profile.stack, profile.cluster.gpu),
        stage_memory(model, profile, programs) {}

  Model model;
  profiles::Profile profile;
  CostModel costs;
  ProgramCache programs;
  StageMemory stage_memory;
  Engine engine, other_engine;                  // the second one's clocks are nobody's
  std::unique_ptr<PipelineSimulator> pipeline;  // made when a plan needs it
  std::unique_ptr<Bounds> bounds;
  StepProgram program;
  std::vector<OpCost> op_costs;  // of a step that is one stage
  KernelTimes kernels;           // of the last plan's step, of its busiest stage
  Nanoseconds undrained_ns = 0;  // of the step, without what the allocator adds

  Schedule& schedule() { return program.stages.front(); }
  const Schedule& schedule() const { return program.stages.front(); }

  /// The time of a step, and what follows from it. What a machine loses with scale one stage waits
  /// for in communication; those of a pipeline wait for one another.
  void fill_time(Prediction& p, SimulatedStep& step) {
    TimePrediction& t = p.time;
    t.iteration_s = step.step_s * scale_factor(profile, p.plan);
    const double scale_s = t.iteration_s - step.step_s;
    if (step.stages.size() == 1) {
      step.stages.front().exposed_s += scale_s;
      step.exposed_s[static_cast<std::size_t>(CommGroup::kData)] += scale_s;
    } else {
      for (StageTime& stage : step.stages) stage.bubble_s += scale_s;
    }
    const StageTime& busiest = step.stages[static_cast<std::size_t>(step.busiest)];
    t.compute_s = busiest.compute_s;
    t.exposed_communication_s = busiest.exposed_s;
    t.host_s = busiest.host_s;
    t.optimizer_s = busiest.optimizer_s;
    t.forward_s = step.forward_s;
    t.backward_s = step.backward_s;
    fill_rates(t, p.plan, step.flops);
    kernels = step.kernels;
    p.host = {step.issued_s, t.compute_s + t.exposed_communication_s + t.optimizer_s,
              std::max(0.0, t.host_s - profile.stack.host.step_s)};
    p.regime = step_regime(p.host, kernels, t.exposed_communication_s);
    p.pipeline = {step.bubble, p.plan.grad_accum, step.steady_state_after};
    p.sent = step.sent;
    p.communication = sum_of(p.sent);
    p.exposed_s = step.exposed_s;
  }

  /// Of a step whose length is known, and that a rank executes so many FLOPs in.
  void fill_rates(TimePrediction& t, const Plan& plan, double flops) const {
    const auto ranks = static_cast<double>(plan.parallel.replica());
    t.tokens_per_gpu_s = tokens_of_step(plan) / ranks / t.iteration_s;
    t.tokens_per_s = t.tokens_per_gpu_s * static_cast<double>(plan.gpus);
    t.peak_flops = peak_flops(profile.cluster.gpu, plan.numerics.precision) /
                   static_cast<double>(profile.cluster.ranks_per_device(plan.gpus));
    t.model_flops_per_gpu = model_flops(model, plan) / ranks / t.iteration_s;
    t.mfu = t.model_flops_per_gpu / t.peak_flops;
    t.hfu = flops / t.iteration_s / t.peak_flops;
  }

  PipelineSimulator& stages() {
    if (!pipeline) pipeline = std::make_unique<PipelineSimulator>(model, profile, programs);
    return *pipeline;
  }

  /// Simulates a step in stages.
  std::optional<SimulatedStep> run_stages(const Plan& plan, const PredictOptions& options,
                                          std::vector<StageFootprint>& footprints) {
    PipelineRecord record;
    program.stages.clear();
    SimulatedStep step = stages().run(plan, options.timeline != nullptr ? &record : nullptr);
    if (options.timeline != nullptr) {
      write_step(model, plan, profile.stack, profile.cluster, programs.at(plan), program);
      write_stage_timeline(step, step.step_s * scale_factor(profile, plan), stages().timer(),
                           record, program, *options.timeline);
    }
    const std::vector<MemoryLevel> levels =
        options.reserved ? stage_memory.levels(plan, step.parts,
                                               options.most_bytes - runtime_bytes(profile, plan))
                         : stage_memory.least_levels(plan, step.parts, StageMemory::Stages::kAll);
    if (levels.size() < static_cast<std::size_t>(plan.parallel.pp)) return std::nullopt;
    for (const MemoryLevel& allocated : levels) {
      StageFootprint& stage = footprints.emplace_back();
      stage.allocated = allocated;
      stage.active_bytes = allocated.bytes;
      stage.reserved_bytes = estimated_reserved_bytes(allocated.peak(), profile.stack);
      stage.estimates_fragmentation = true;
      stage.peak_at = fmt::format("the backward pass of stage {}", footprints.size() - 1);
    }
    return step;
  }

  /// Simulates the schedule of a step that is one stage, and its memory with what that makes the
  /// step wait; nothing where the replay gave up.
  std::optional<SimulatedStep> run_stage(const Plan& plan, const PredictOptions& options,
                                         std::vector<StageFootprint>& footprints) {
    write_step(model, plan, profile.stack, profile.cluster, programs.at(plan), program);
    costs.cost(schedule(), op_costs);
    const std::optional<StepTime> time = run(plan, options, footprints.emplace_back());
    if (!time) return std::nullopt;
    SimulatedStep step;
    step.parts = program.parts;
    step.step_s = seconds_of(time->step_ns);
    step.stages.push_back({seconds_of(time->time.compute_ns), seconds_of(time->time.exposed_ns),
                           seconds_of(time->time.host_ns), seconds_of(time->time.optimizer_ns), 0});
    const auto phase = [&](Phase which) {
      return seconds_of(time->phase_ns[static_cast<std::size_t>(which)]);
    };
    step.forward_s = phase(Phase::kForward) + phase(Phase::kLoss);
    step.backward_s = phase(Phase::kBackward) + phase(Phase::kRecompute) + phase(Phase::kReduce);
    step.flops = executed_flops(schedule());
    step.issued_s = -profile.stack.host.step_s;
    for (const Section& section : schedule().sections) {
      step.issued_s += section.repeats * seconds_of(issued_ns(schedule(), op_costs, section));
      step.kernels.add(kernel_times(schedule(), op_costs, section), section.repeats);
    }
    step.issued_s = std::max(0.0, step.issued_s);
    for (std::size_t group = 0; group < step.exposed_s.size(); ++group) {
      step.exposed_s[static_cast<std::size_t>(told_as(static_cast<CommGroup>(group)))] +=
          seconds_of(time->exposed_ns[group]);
    }
    step.sent = communication_by_group(schedule());
    if (options.timeline != nullptr) complete(*options.timeline);
    return step;
  }

  /// The step's length where computation and communication that begin together are taken up in the
  /// other order.
  double other_tie_order_s(const Prediction& p, const PredictOptions& options) {
    EngineOptions other = engine_options(profile.cluster.gpu);
    other.side_streams_first = true;
    other.skip_repeats = options.skip_repeats;
    const StepTime step = other_engine.run(schedule(), op_costs, other);
    return p.time.iteration_s +
           seconds_of(step.step_ns - undrained_ns) * scale_factor(profile, p.plan);
  }

  /// Adds to `step` what waiting for the allocator adds to `part`, which stands for `times` as
  /// much. Leaves the engine's clocks as they were in `part` where nothing waits.
  void drain(const Schedule& part, const std::vector<Nanoseconds>& drains, double times,
             const StepTime& part_step, StepTime& step) {
    undrained_ns = step.step_ns;
    if (drains.empty()) return;
    EngineOptions options = engine_options(profile.cluster.gpu);
    options.allocation_ns = &drains;
    const StepTime with = other_engine.run(part, op_costs, options);
    const auto add = [times](Nanoseconds& to, Nanoseconds more, Nanoseconds less) {
      to += static_cast<Nanoseconds>(static_cast<double>(more - less) * times);
    };
    add(step.step_ns, with.step_ns, part_step.step_ns);
    add(step.time.compute_ns, with.time.compute_ns, part_step.time.compute_ns);
    add(step.time.exposed_ns, with.time.exposed_ns, part_step.time.exposed_ns);
    add(step.time.host_ns, with.time.host_ns, part_step.time.host_ns);
    add(step.time.optimizer_ns, with.time.optimizer_ns, part_step.time.optimizer_ns);
  }

  /// Intervals of time and memory, and the verdict.
  void fill_intervals(Prediction& p, const std::string& source) const {
    const TimePrediction& t = p.time;
    const double published = published_half_width(p, model, profile, source);
    const double half_width = calibrated_half_width(
        profile, kernels, {t.iteration_s, t.exposed_communication_s, t.host_s}, published);
    if (half_width != published) p.time.scale_half_width = 0;
    set_intervals(p, profile, half_width);
  }

  /// What a schedule takes of the device, and what the device's allocator costs the host in a step
  /// of it, by OpId, empty for nothing. Nothing at all where it was given up.
  std::optional<std::vector<Nanoseconds>> footprint(const Plan& plan, const Schedule& replayed_part,
                                                    const StepClock& clock, bool replays,
                                                    const PredictOptions& options,
                                                    StageFootprint& of) const {
    Timeline* timeline = options.timeline;
    const AllocatedPeak peak = allocated_peak(schedule());
    of.allocated = peak.level;
    of.peak_at = describe(schedule(), peak.at);
    of.active_bytes = of.reserved_bytes = peak.level.bytes;
    std::vector<Nanoseconds> drains;
    if (profile.stack.memory == MemoryManager::kStatic) {
      of.allocated = static_level(schedule(), peak.level);
      of.active_bytes = of.reserved_bytes = of.allocated.bytes;
      if (timeline != nullptr)
        timeline->memory = static_memory_curve(schedule(), clock, of.reserved_bytes);
    } else if (replays) {
      std::vector<MemorySample>* samples = timeline != nullptr ? &timeline->memory : nullptr;
      AllocatorOptions settings;
      settings.expandable_segments = expandable_segments(plan, profile.stack);
      if (profile.stack.allocator.max_split_bytes > 0)
        settings.max_split_bytes = static_cast<Bytes>(profile.stack.allocator.max_split_bytes);
      AllocatorOptions limits = settings;
      const Bytes runtime = runtime_bytes(profile, plan);
      limits.limit_bytes = std::clamp<Bytes>(
          profile.cluster.memory_bytes_per_rank(plan.gpus) - runtime, 0, limits.kUnlimited);
      CachingAllocator limited(limits);
      ReplayedMemory replayed =
          replay_memory(replayed_part, clock, limited, samples, options.most_bytes - runtime);
      if (replayed.given_up) return std::nullopt;
      for (const std::int32_t calls : replayed.device_calls) {
        drains.push_back(
            static_cast<Nanoseconds>(calls * profile.stack.host.device_allocation_s * 1e9));
      }
      if (replayed.out_of_memory) {
        // Says how much would have been needed.
        CachingAllocator unlimited(settings);
        if (samples != nullptr) samples->clear();
        replayed = replay_memory(replayed_part, clock, unlimited, samples);
        drains.clear();
      }
      of.active_bytes = replayed.peak_active;
      of.reserved_bytes = replayed.peak_reserved;
      of.retries = replayed.retries;
    } else if (knows_reserved(plan, profile.stack)) {
      of.estimates_fragmentation = true;
      of.reserved_bytes = estimated_reserved_bytes(peak.level.peak(), profile.stack);
    }
    return drains;
  }

  /// Simulates the step of the one stage, and its memory with what it makes the step wait; nothing
  /// where the replay gave up.
  std::optional<StepTime> run(const Plan& plan, const PredictOptions& options, StageFootprint& of) {
    const bool replays = options.reserved && !knows_reserved(plan, profile.stack);
    // Micro-batches are alike, so the allocator meets only a few of them.
    const bool shortens =
        replays && options.timeline == nullptr && plan.grad_accum > kReplayedMicroBatches;
    Timeline clock_only;
    EngineOptions timed = engine_options(profile.cluster.gpu);
    timed.skip_repeats = options.skip_repeats;
    timed.timeline = options.timeline != nullptr ? options.timeline
                     : replays && !shortens      ? &clock_only
                                                 : nullptr;
    StepTime step = engine.run(schedule(), op_costs, timed);
    Schedule few;
    StepTime replayed_step = step;
    if (shortens) {
      few = schedule();
      for (Section& section : few.sections)
        section.repeats = std::min<std::int32_t>(section.repeats, kReplayedMicroBatches - 2);
      timed.timeline = &clock_only;
      replayed_step = engine.run(few, op_costs, timed);
    }
    const Schedule& replayed = shortens ? few : schedule();
    const StepClock clock{engine.issue_ns(), engine.completion_ns(), replayed_step.step_ns};
    const auto drains = footprint(plan, replayed, clock, replays, options, of);
    if (!drains) return std::nullopt;
    const double times =
        shortens ? static_cast<double>(plan.grad_accum) / kReplayedMicroBatches : 1;
    drain(replayed, *drains, times, replayed_step, step);
    return step;
  }

  /// Gives the engine's spans their order, their streams' names and the host's own track.
  void complete(Timeline& timeline) const {
    timeline.source = "predicted";
    timeline.step_ns = undrained_ns;
    timeline.streams.clear();
    for (const Stream& stream : schedule().streams) timeline.streams.emplace_back(stream.name);
    std::stable_sort(timeline.spans.begin(), timeline.spans.end(),
                     [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
    // The host goes from one operation straight to the next.
    const std::vector<Nanoseconds>& begins = engine.issue_ns();
    timeline.host.clear();
    for (std::size_t id = 0; id < begins.size(); ++id) {
      const Nanoseconds end = id + 1 < begins.size() ? begins[id + 1] : engine.completion_ns()[id];
      if (end <= begins[id]) continue;
      Span& span = timeline.host.emplace_back();
      span.id = static_cast<OpId>(id);
      span.begin_ns = begins[id];
      span.end_ns = end;
    }
  }
};

Predictor::Predictor(Model model, profiles::Profile profile)
    : state_(std::make_unique<State>(std::move(model), std::move(profile))) {}
Predictor::~Predictor() = default;
Predictor::Predictor(Predictor&&) noexcept = default;
Predictor& Predictor::operator=(Predictor&&) noexcept = default;

const StepProgram& Predictor::program() const {
  return state_->program;
}
const Model& Predictor::model() const {
  return state_->model;
}
const profiles::Profile& Predictor::profile() const {
  return state_->profile;
}

Prediction Predictor::predict(const Plan& plan, const PredictOptions& options) {
  State& s = *state_;
  const Cluster& cluster = s.profile.cluster;
  check_plan(plan, s.model, cluster.gpus_per_node);
  check_modelled(s.model, plan, s.profile);
  Prediction p;
  p.plan = plan;
  std::vector<StageFootprint> footprints;
  const bool is_one = plan.parallel.pp == 1;
  std::optional<SimulatedStep> step =
      is_one ? s.run_stage(plan, options, footprints) : s.run_stages(plan, options, footprints);
  p.memory.given_up = !step;
  if (!step) return p;
  s.fill_time(p, *step);
  p.memory.usable_bytes = cluster.memory_bytes_per_rank(plan.gpus);
  p.memory.runtime_bytes = runtime_bytes(s.profile, plan);
  fill_memory(p.memory, footprints);
  fill_stages(p, *step, footprints);
  if (is_one && options.reserved && cluster.gpu.streams_contend())
    p.other_tie_order_s = s.other_tie_order_s(p, options);
  p.extrapolated = extrapolations(s.profile, s.model, plan);
  s.fill_intervals(p, options.source);
  return p;
}

Bounds& Predictor::bounds() {
  State& s = *state_;
  if (!s.bounds) s.bounds = std::make_unique<Bounds>(s.model, s.profile, s.programs);
  return *s.bounds;
}

Prediction predict(const Model& model, const profiles::Profile& profile, const Plan& plan,
                   const PredictOptions& options) {
  return Predictor(model, profile).predict(plan, options);
}

namespace {

void check_framework(const Model& model, const Plan& plan, const Stack& stack) {
  const Features does = stack.parallel.features();
  const Features lacks = features_of(plan).without(does);
  if (lacks.any()) {
    std::string_view expected = "a stack such as megatron-core";
    if (!lacks.without({Feature::kQuantized}).any())
      expected = "none or a stack such as hf-trainer";
    else if (stack.id == "hf-eager")
      expected = "a stack such as hf-trainer";
    throw InvalidPlan(fmt::format("{}, which the framework {} does not do, expected {}",
                                  beyond(plan, does), stack.id, expected));
  }
  if (plan.parallel.cp > 1 && model.recurrence.value_heads > 0 &&
      !does.has(Feature::kContextOfRecurrence)) {
    throw InvalidPlan(fmt::format(
        "cp is {}, but the framework {} does not share sequences of {} over context ranks, "
        "expected 1 or a stack such as megatron-core",
        plan.parallel.cp, stack.id, name_of(model.recurrence.kind)));
  }
}

/// Of a cluster whose ranks share processors.
void check_shared_devices(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  const Cluster& cluster = profile.cluster;
  if (cluster.devices_per_node == 0 || !features_of(plan).any()) return;
  const bool runs_here = cluster.gpu.is_processor() && profile.stack.id == kOwnStack;
  if (!runs_here || !why_not_run(model, plan).empty()) {
    throw InvalidPlan(
        fmt::format("{}, but ranks of cluster {} share devices, expected a cluster of GPUs",
                    beyond(plan, {}), cluster.id));
  }
  // Tensor ranks of this project's executor take turns on a processor as replicas do. Stages wait
  // for one another, and where they share a core no pass has a time of its own.
  if (plan.parallel.pp > 1 && cluster.ranks_per_device(plan.gpus) > cluster.gpu.sm_count) {
    throw InvalidPlan(
        fmt::format("pp is {}, but {} ranks take turns on the {} cores of cluster {}, expected "
                    "at most one rank a core (gpu.sm_count), or a cluster such as cpu-cores",
                    plan.parallel.pp, plan.gpus, cluster.gpu.sm_count, cluster.id));
  }
}

void check_precision(const Plan& plan, const Gpu& gpu) {
  const Numerics& n = plan.numerics;
  const bool has_it = peak_flops(gpu, n.precision) > 0;
  if (!has_it && n.precision == Precision::kBf16) {
    if (plan.param_dtype != DType::kBf16) return;
    throw InvalidPlan(
        fmt::format("precision is bf16, which the GPU {} lacks, expected --precision fp16 "
                    "with a stack that does it, such as megatron-core",
                    gpu.id));
  }
  if (!has_it) {
    std::vector<std::string_view> has;
    for (const Precision other :
         {Precision::kBf16, Precision::kFp16, Precision::kFp8, Precision::kNvfp4}) {
      if (peak_flops(gpu, other) > 0) has.push_back(name_of(other));
    }
    throw InvalidPlan(fmt::format("precision is {}, which the GPU {} lacks, expected {}",
                                  name_of(n.precision), gpu.id, fmt::join(has, " or ")));
  }
  if (n.fp8_recipe == Fp8Recipe::kMxfp8 && gpu.mxfp8_gemm_share <= 0) {
    throw InvalidPlan(
        fmt::format("fp8_recipe is mxfp8, whose blocks of 32 the GPU {} does not scale, expected "
                    "delayed, tensorwise, rowwise or block",
                    gpu.id));
  }
}

}  // namespace

void check_modelled(const Model& model, const Plan& plan, const profiles::Profile& profile) {
  check_framework(model, plan, profile.stack);
  check_shared_devices(model, plan, profile);
  check_precision(plan, profile.cluster.gpu);
}

}  // namespace shardwright::sim
