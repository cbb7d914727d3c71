// SPDX-License-Identifier: Apache-2.0
#include "sim/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/accounting.h"
#include "sim/bounds/bounds.h"
#include "sim/check_modelled.h"
#include "sim/core/base/seconds.h"
#include "sim/core/placement.h"
#include "sim/cost/cost.h"
#include "sim/cost/scale.h"
#include "sim/engine/engine.h"
#include "sim/memory/memory.h"
#include "sim/memory/reserved.h"
#include "sim/memory/stage_memory.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/pipeline/stage_schedules.h"
#include "sim/pipeline/stage_timeline.h"
#include "sim/program/low_precision.h"
#include "sim/program/program_cache.h"
#include "sim/strategies/lower.h"
#include "sim/uncertainty/calibrated_interval.h"
#include "sim/uncertainty/extrapolation.h"
#include "sim/uncertainty/intervals.h"

namespace shardwright::sim {

namespace {

/// Of a step with more micro-batches, the first, the last and this many less two of the others.
constexpr int kReplayedMicroBatches = 4;

bool expandable_segments(const Plan& plan, const Stack& stack) {
  return plan.allocator == AllocatorKind::kStack ? stack.allocator.expandable_segments
                                                 : plan.allocator == AllocatorKind::kExpandable;
}

/// What a stage of a step does and holds.
struct StageOfStep {
  StageTime time;
  std::int64_t layers = 0;
  MemoryLevel allocated;
  Bytes reserved_bytes = 0;
};

/// The fullest stage's memory stands for all of a pipeline's.
void fill_memory_of_stages(MemoryPrediction& m, const std::vector<StageOfStep>& stages) {
  const auto fullest = std::max_element(stages.begin(), stages.end(),
                                        [](const StageOfStep& a, const StageOfStep& b) {
                                          return a.reserved_bytes < b.reserved_bytes;
                                        });
  m.estimates_fragmentation = true;
  m.peak_allocated_bytes = m.peak_active_bytes = fullest->allocated.bytes;
  m.peak_reserved_bytes = fullest->reserved_bytes;
  m.breakdown_bytes = fullest->allocated.by_category;
  m.peak_at = fmt::format("the backward pass of stage {}", fullest - stages.begin());
  m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
  m.fits = m.total_bytes <= m.usable_bytes;
}

void fill_stages(Prediction& p, const std::vector<StageOfStep>& stages) {
  const MemoryPrediction& m = p.memory;
  for (const StageOfStep& of : stages) {
    StagePrediction& stage = p.stages.emplace_back();
    stage.stage = std::ssize(p.stages) - 1;
    stage.layers = of.layers;
    stage.compute_s = of.time.compute_s;
    stage.exposed_communication_s = of.time.exposed_s;
    stage.host_s = of.time.host_s;
    stage.optimizer_s = of.time.optimizer_s;
    stage.bubble_s = of.time.bubble_s;
    stage.peak_allocated_bytes = of.allocated.bytes;
    stage.peak_reserved_bytes = of.reserved_bytes;
    stage.fits = of.reserved_bytes + m.runtime_bytes <= m.usable_bytes;
    std::copy(of.allocated.by_category.begin(), of.allocated.by_category.end(),
              stage.breakdown_bytes.begin());
  }
}

double tokens_per_step(const Plan& plan) {
  return static_cast<double>(plan.seq_len * plan.micro_batch) *
         static_cast<double>(plan.grad_accum);
}

}  // namespace

double model_flops(const Model& model, const Plan& plan) {
  // Backward does each product of forward twice, for the input's and the weight's gradient; frozen
  // weights have none.
  const ForwardFlops forward = forward_flops_per_token(model, plan.document_length());
  if (plan.numerics.lora > 0)
    return tokens_per_step(plan) * (2 * forward.matrices + 3 * forward.attention);
  return tokens_per_step(plan) * (3 * forward.total());
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
  Schedule schedule;
  bool scheduled = false;  // `schedule` is of the last plan
  std::vector<OpCost> op_costs;
  KernelTimes kernels;           // of the last plan's step, of its busiest stage
  Nanoseconds undrained_ns = 0;  // of the step, without what the allocator adds

  void fill_time(TimePrediction& t, const Plan& plan, const StepTime& step) const {
    const double simulated_s = seconds_of(step.step_ns);
    t.iteration_s = simulated_s * scale_factor(profile, plan);
    t.compute_s = seconds_of(step.time.compute_ns);
    t.exposed_communication_s = seconds_of(step.time.exposed_ns) + (t.iteration_s - simulated_s);
    t.host_s = seconds_of(step.time.host_ns);
    t.optimizer_s = seconds_of(step.time.optimizer_ns);
    const auto phase = [&](Phase which) {
      return seconds_of(step.phase_ns[static_cast<std::size_t>(which)]);
    };
    t.forward_s = phase(Phase::kForward) + phase(Phase::kLoss);
    t.backward_s = phase(Phase::kBackward) + phase(Phase::kRecompute) + phase(Phase::kReduce);
    fill_rates(t, plan, executed_flops(schedule));
  }

  /// Of a step on one stage.
  HostShare host_share(const TimePrediction& t) const {
    const double between_s = profile.stack.host.step_s;
    HostShare share{-between_s, t.compute_s + t.exposed_communication_s + t.optimizer_s,
                    std::max(0.0, t.host_s - between_s)};
    for (const Section& section : schedule.sections)
      share.issues_s += section.repeats * seconds_of(issued_ns(schedule, op_costs, section));
    share.issues_s = std::max(0.0, share.issues_s);
    return share;
  }

  KernelTimes kernels_of_schedule() const {
    KernelTimes times;
    for (const Section& section : schedule.sections)
      times.add(kernel_times(schedule, op_costs, section), section.repeats);
    return times;
  }

  /// Of a step whose length is known, and that a rank executes so many FLOPs in.
  void fill_rates(TimePrediction& t, const Plan& plan, double flops) const {
    const auto ranks = static_cast<double>(plan.parallel.replica());
    t.tokens_per_gpu_s = tokens_per_step(plan) / ranks / t.iteration_s;
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

  /// Simulates a step in stages, of which the busiest stands for all.
  std::vector<StageOfStep> run_stages(Prediction& p, const PredictOptions& options) {
    const Plan& plan = p.plan;
    PipelineRecord record;
    PipelineStep step = stages().run(plan, options.timeline != nullptr ? &record : nullptr);
    const StageTime& busiest = step.stages[static_cast<std::size_t>(step.busiest)];
    TimePrediction& t = p.time;
    t.iteration_s = step.step_s * scale_factor(profile, plan);
    const double scale_s = t.iteration_s - step.step_s;
    t.compute_s = busiest.compute_s;
    t.exposed_communication_s = busiest.exposed_s;
    t.host_s = busiest.host_s;
    t.optimizer_s = busiest.optimizer_s;
    const double between_s = profile.stack.host.step_s;
    p.host = {step.issued_s, t.compute_s + t.exposed_communication_s,
              std::max(0.0, t.host_s - between_s)};
    kernels = step.kernels;
    p.regime = step_regime(p.host, kernels, t.exposed_communication_s);
    t.forward_s = step.forward_s;
    t.backward_s = step.backward_s;
    fill_rates(t, plan, step.flops);
    p.pipeline.bubble = step.bubble;
    p.pipeline.steady_state_after = step.steady_state_after;
    p.sent = step.sent;
    p.communication = shardwright::sim::sum_of(p.sent);
    p.exposed_s = step.exposed_s;
    if (options.timeline != nullptr) {
      std::vector<Schedule> schedules =
          stage_schedules(model, plan, profile.stack, profile.cluster, programs.at(plan));
      write_stage_timeline(step, t.iteration_s, stages().timer(), record, schedules,
                           *options.timeline);
      if (options.stage_schedules != nullptr) *options.stage_schedules = std::move(schedules);
    }
    MemoryPrediction& memory = p.memory;
    memory.usable_bytes = profile.cluster.memory_bytes_per_rank(plan.gpus);
    memory.runtime_bytes = runtime_bytes(profile, plan);
    const std::vector<MemoryLevel> allocated = stage_memory.levels(plan, step.parts);
    const std::vector<std::int64_t> layers = stage_layers(pipeline_shape(plan), step.parts);
    std::vector<StageOfStep> of_step;
    for (std::size_t s = 0; s < allocated.size(); ++s) {
      step.stages[s].bubble_s += scale_s;
      of_step.push_back({step.stages[s], layers[s], allocated[s],
                         estimated_reserved_bytes(allocated[s].peak(), profile.stack)});
    }
    fill_memory_of_stages(memory, of_step);
    return of_step;
  }

  /// Simulates the schedule of a step that is one stage; nothing where it was given up.
  std::vector<StageOfStep> run_schedule(Prediction& p, const PredictOptions& options) {
    lower(model, p.plan, profile.stack, profile.cluster, programs.at(p.plan), schedule);
    costs.cost(schedule, op_costs);
    const StepTime step = run(p.plan, options, p.memory);
    if (p.memory.given_up) return {};
    fill_time(p.time, p.plan, step);
    p.host = host_share(p.time);
    kernels = kernels_of_schedule();
    p.regime = step_regime(p.host, kernels, p.time.exposed_communication_s);
    p.sent = communication_by_group(schedule);
    p.communication = sum_of(p.sent);
    for (std::size_t group = 0; group < p.exposed_s.size(); ++group) {
      p.exposed_s[static_cast<std::size_t>(told_as(static_cast<CommGroup>(group)))] +=
          seconds_of(step.exposed_ns[group]);
    }
    const TimePrediction& t = p.time;
    p.exposed_s[static_cast<std::size_t>(CommGroup::kData)] +=
        t.exposed_communication_s - seconds_of(step.time.exposed_ns);
    if (options.timeline != nullptr) complete(*options.timeline);
    const MemoryPrediction& m = p.memory;
    const MemoryLevel allocated{m.peak_allocated_bytes, m.breakdown_bytes};
    const StageTime time{t.compute_s, t.exposed_communication_s, t.host_s, t.optimizer_s, 0};
    return {{time, model.layers, allocated, m.peak_reserved_bytes}};
  }

  /// The step's length where computation and communication that begin together are taken up in the
  /// other order.
  double other_tie_order_s(const Prediction& p, const PredictOptions& options) {
    EngineOptions other = engine_options(profile.cluster.gpu);
    other.side_streams_first = true;
    other.skip_repeats = options.skip_repeats;
    const StepTime step = other_engine.run(schedule, op_costs, other);
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

  /// Returns what the device's allocator costs the host in a step, by OpId; empty for nothing.
  std::vector<Nanoseconds> fill_memory(MemoryPrediction& m, const Plan& plan,
                                       const Schedule& replayed_schedule, const StepClock& clock,
                                       bool replays, const PredictOptions& options) const {
    Timeline* timeline = options.timeline;
    const AllocatedPeak peak = allocated_peak(schedule);
    m.breakdown_bytes = peak.level.by_category;
    m.peak_at = describe(schedule, peak.at);
    m.runtime_bytes = runtime_bytes(profile, plan);
    m.usable_bytes = profile.cluster.memory_bytes_per_rank(schedule.world_ranks());
    m.peak_allocated_bytes = m.peak_active_bytes = m.peak_reserved_bytes = peak.level.bytes;
    std::vector<Nanoseconds> drains;
    if (profile.stack.memory == MemoryManager::kStatic) {
      const Bytes arenas = static_memory_bytes(schedule);
      m.breakdown_bytes[static_cast<std::size_t>(MemoryCategory::kWorkspace)] +=
          arenas - peak.level.bytes;
      m.peak_allocated_bytes = m.peak_active_bytes = m.peak_reserved_bytes = arenas;
      if (timeline != nullptr) timeline->memory = static_memory_curve(schedule, clock, arenas);
    } else if (replays) {
      std::vector<MemorySample>* samples = timeline != nullptr ? &timeline->memory : nullptr;
      AllocatorOptions settings;
      settings.expandable_segments = expandable_segments(plan, profile.stack);
      if (profile.stack.allocator.max_split_bytes > 0)
        settings.max_split_bytes = static_cast<Bytes>(profile.stack.allocator.max_split_bytes);
      AllocatorOptions limits = settings;
      limits.limit_bytes =
          std::clamp<Bytes>(m.usable_bytes - m.runtime_bytes, 0, limits.kUnlimited);
      CachingAllocator limited(limits);
      const Bytes give_up = options.most_bytes - m.runtime_bytes;
      ReplayedMemory replayed = replay_memory(replayed_schedule, clock, limited, samples, give_up);
      m.given_up = replayed.given_up;
      if (m.given_up) return {};
      for (const std::int32_t calls : replayed.device_calls) {
        drains.push_back(
            static_cast<Nanoseconds>(calls * profile.stack.host.device_allocation_s * 1e9));
      }
      if (replayed.out_of_memory) {
        // Says how much would have been needed.
        CachingAllocator unlimited(settings);
        if (samples != nullptr) samples->clear();
        replayed = replay_memory(replayed_schedule, clock, unlimited, samples);
        drains.clear();
      }
      m.peak_active_bytes = replayed.peak_active;
      m.peak_reserved_bytes = replayed.peak_reserved;
      m.allocator_retries = replayed.retries;
    } else if (knows_reserved(plan, profile.stack)) {
      m.estimates_fragmentation = true;
      m.peak_reserved_bytes = estimated_reserved_bytes(peak.level.peak(), profile.stack);
    }
    m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
    m.fits = m.total_bytes <= m.usable_bytes;
    return drains;
  }

  /// Simulates the step of `schedule`, and memory with what it makes the step wait.
  StepTime run(const Plan& plan, const PredictOptions& options, MemoryPrediction& memory) {
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
    StepTime step = engine.run(schedule, op_costs, timed);
    if (!shortens) {
      const StepClock clock{engine.issue_ns(), engine.completion_ns(), step.step_ns};
      const auto drains = fill_memory(memory, plan, schedule, clock, replays, options);
      drain(schedule, drains, 1, StepTime(step), step);
      return step;
    }
    Schedule few = schedule;
    for (Section& section : few.sections) {
      section.repeats = std::min<std::int32_t>(section.repeats, kReplayedMicroBatches - 2);
    }
    timed.timeline = &clock_only;
    const StepTime few_step = engine.run(few, op_costs, timed);
    const StepClock clock{engine.issue_ns(), engine.completion_ns(), few_step.step_ns};
    const auto drains = fill_memory(memory, plan, few, clock, replays, options);
    drain(few, drains, static_cast<double>(plan.grad_accum) / kReplayedMicroBatches, few_step,
          step);
    return step;
  }

  /// Gives the engine's spans their order, their streams' names and the host's own track.
  void complete(Timeline& timeline) const {
    timeline.source = "predicted";
    timeline.step_ns = undrained_ns;
    timeline.streams.clear();
    for (const Stream& stream : schedule.streams) timeline.streams.emplace_back(stream.name);
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

const Schedule* Predictor::schedule() const {
  return state_->scheduled ? &state_->schedule : nullptr;
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
  s.scheduled = plan.parallel.pp == 1;
  Prediction p;
  p.plan = plan;
  const std::vector<StageOfStep> stages =
      s.scheduled ? s.run_schedule(p, options) : s.run_stages(p, options);
  if (p.memory.given_up) return p;
  fill_stages(p, stages);
  p.pipeline.micro_batches = plan.grad_accum;
  if (s.scheduled && options.reserved && cluster.gpu.streams_contend())
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

}  // namespace shardwright::sim
