// SPDX-License-Identifier: Apache-2.0
#include "sim/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/accounting.h"
#include "sim/core/error.h"
#include "sim/core/placement.h"
#include "sim/cost/cost.h"
#include "sim/doubt/calibrated_interval.h"
#include "sim/doubt/conformal.h"
#include "sim/doubt/extrapolation.h"
#include "sim/engine/engine.h"
#include "sim/memory/memory.h"
#include "sim/parallel/predict_parallel.h"
#include "sim/program/program_cache.h"
#include "sim/strategies/lower.h"

namespace shardwright::sim {

namespace {

/// Of a step with more micro-steps, the first, the last and this many less two of the others.
constexpr int kReplayedMicroSteps = 4;

bool expandable_segments(const Plan& plan, const Stack& stack) {
  return plan.allocator == AllocatorKind::kStack ? stack.allocator.expandable_segments
                                                 : plan.allocator == AllocatorKind::kExpandable;
}

double seconds(Nanoseconds ns) {
  return static_cast<double>(ns) * 1e-9;
}

double tokens_per_step(const Plan& plan) {
  return static_cast<double>(plan.seq_len * plan.micro_batch) *
         static_cast<double>(plan.grad_accum);
}

}  // namespace

double model_flops(const Model& model, const Plan& plan) {
  // Backward does each product of forward twice, for the input's and the weight's gradient.
  return tokens_per_step(plan) * (3 * forward_flops_per_token(model, plan.seq_len).total());
}

double TimePrediction::other_s() const {
  const double rest = iteration_s - (compute_s + exposed_communication_s + host_s + optimizer_s);
  return std::abs(rest) < 1e-9 ? 0 : rest;
}

struct Predictor::State {
  State(Model m, profiles::Profile p)
      : model(std::move(m)),
        profile(std::move(p)),
        costs(profile),
        programs(model, profile.stack) {}

  Model model;
  profiles::Profile profile;
  CostModel costs;
  ProgramCache programs;
  Engine engine;
  std::unique_ptr<ParallelEngine> parallel;  // made when a plan needs it
  Schedule schedule;
  std::vector<OpCost> op_costs;

  /// `pressure_s`: what allocating at the memory limit adds, with the device idle.
  void fill_time(TimePrediction& t, const Plan& plan, const StepTime& step,
                 double pressure_s) const {
    t.iteration_s = seconds(step.step_ns) + pressure_s;
    t.compute_s = seconds(step.time.compute_ns);
    t.exposed_communication_s = seconds(step.time.exposed_ns);
    t.host_s = seconds(step.time.host_ns) + pressure_s;
    t.optimizer_s = seconds(step.time.optimizer_ns);
    const auto phase = [&](Phase which) {
      return seconds(step.phase_ns[static_cast<std::size_t>(which)]);
    };
    t.forward_s = phase(Phase::kForward) + phase(Phase::kLoss);
    t.backward_s = phase(Phase::kBackward) + phase(Phase::kRecompute) + phase(Phase::kReduce);
    t.tokens_per_gpu_s = tokens_per_step(plan) / t.iteration_s;
    t.tokens_per_s = t.tokens_per_gpu_s * static_cast<double>(plan.gpus);
    t.peak_flops = profile.cluster.gpu.peak_bf16_flops /
                   static_cast<double>(profile.cluster.ranks_per_device(plan.gpus));
    t.model_flops_per_gpu = model_flops(model, plan) / t.iteration_s;
    t.mfu = t.model_flops_per_gpu / t.peak_flops;
    t.hfu = executed_flops(schedule) / t.iteration_s / t.peak_flops;
    const std::string& stack = profile.stack.id;
    const bool seen = seen_on_gpu(profile.uncertainty, stack, profile.cluster.gpu.id);
    const double published =
        half_width(profile.uncertainty, stack, seen, t.exposed_communication_s / t.iteration_s);
    const double width =
        calibrated_half_width(profile, schedule, op_costs,
                              {t.iteration_s, t.exposed_communication_s, t.host_s}, published);
    const auto interval = interval_around(t.iteration_s, width);
    std::copy(interval.begin(), interval.end(), t.interval_s);
    t.interval_level = profile.uncertainty.level;
  }

  /// Returns how often a step calls the device's allocator.
  double fill_memory(MemoryPrediction& m, const Plan& plan, const Schedule& replayed_schedule,
                     const StepClock& clock, bool replays, Timeline* timeline) const {
    const AllocatedPeak peak = allocated_peak(schedule);
    m.breakdown_bytes = peak.breakdown;
    m.peak_at = describe(schedule, peak.at);
    m.runtime_bytes = profile.cluster.gpu.runtime_bytes;
    m.usable_bytes = profile.cluster.memory_bytes_per_rank(schedule.world_ranks());
    m.peak_allocated_bytes = m.peak_active_bytes = m.peak_reserved_bytes = peak.bytes;
    double device_calls = 0;
    if (profile.stack.memory == MemoryManager::kStatic) {
      const Bytes arenas = static_memory_bytes(schedule);
      m.breakdown_bytes[static_cast<std::size_t>(MemoryCategory::kWorkspace)] +=
          arenas - peak.bytes;
      m.peak_allocated_bytes = m.peak_active_bytes = m.peak_reserved_bytes = arenas;
      if (timeline != nullptr) timeline->memory = static_memory_curve(schedule, clock, arenas);
    } else if (replays) {
      std::vector<MemorySample>* samples = timeline != nullptr ? &timeline->memory : nullptr;
      AllocatorOptions settings;
      settings.expandable_segments = expandable_segments(plan, profile.stack);
      if (profile.stack.allocator.max_split_bytes > 0)
        settings.max_split_bytes = static_cast<Bytes>(profile.stack.allocator.max_split_bytes);
      AllocatorOptions limits = settings;
      limits.limit_bytes = m.usable_bytes - m.runtime_bytes;
      CachingAllocator limited(limits);
      ReplayedMemory replayed = replay_memory(replayed_schedule, clock, limited, samples);
      device_calls = replayed.device_calls;
      if (replayed.out_of_memory) {
        // Says how much would have been needed.
        CachingAllocator unlimited(settings);
        if (samples != nullptr) samples->clear();
        replayed = replay_memory(replayed_schedule, clock, unlimited, samples);
        device_calls = 0;
      }
      m.peak_active_bytes = replayed.peak_active;
      m.peak_reserved_bytes = replayed.peak_reserved;
      m.allocator_retries = replayed.retries;
    }
    m.total_bytes = m.peak_reserved_bytes + m.runtime_bytes;
    m.fits = m.total_bytes <= m.usable_bytes;
    return device_calls;
  }
};

Predictor::Predictor(Model model, profiles::Profile profile)
    : state_(std::make_unique<State>(std::move(model), std::move(profile))) {}
Predictor::~Predictor() = default;
Predictor::Predictor(Predictor&&) noexcept = default;
Predictor& Predictor::operator=(Predictor&&) noexcept = default;

const Schedule& Predictor::schedule() const {
  return state_->schedule;
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
  if (goes_parallel(plan, s.profile.stack)) {
    if (options.timeline != nullptr) {
      throw Error(
          fmt::format("{}, and a timeline of such a plan is not written yet, expected a plan "
                      "of data parallelism only",
                      beyond_data_parallel(plan)));
    }
    if (!s.parallel) s.parallel = std::make_unique<ParallelEngine>(s.model, s.profile);
    return predict_parallel(*s.parallel, s.model, s.profile, plan);
  }
  lower(s.model, plan, s.profile.stack, cluster.gpus_per_node, s.programs.at(plan), s.schedule);
  s.costs.cost(s.schedule, s.op_costs);

  const bool replays =
      options.reserved && s.profile.stack.memory == MemoryManager::kCachingAllocator;
  // Micro-steps are alike, so the allocator meets only a few of them.
  const bool shortens =
      replays && options.timeline == nullptr && plan.grad_accum > kReplayedMicroSteps;
  Timeline clock_only;
  EngineOptions engine_options;
  engine_options.skip_repeats = options.skip_repeats;
  engine_options.in_order = !cluster.gpu.overlaps_streams;
  engine_options.timeline = options.timeline != nullptr ? options.timeline
                            : replays && !shortens      ? &clock_only
                                                        : nullptr;
  const StepTime step = s.engine.run(s.schedule, s.op_costs, engine_options);

  Prediction p;
  p.plan = plan;
  double device_calls = 0;
  if (shortens) {
    Schedule few = s.schedule;
    for (Section& section : few.sections) {
      section.repeats = std::min<std::int32_t>(section.repeats, kReplayedMicroSteps - 2);
    }
    engine_options.timeline = &clock_only;
    const StepTime few_step = s.engine.run(few, s.op_costs, engine_options);
    const StepClock clock{s.engine.issue_ns(), s.engine.completion_ns(), few_step.step_ns};
    device_calls = s.fill_memory(p.memory, plan, few, clock, replays, nullptr) *
                   static_cast<double>(plan.grad_accum) / kReplayedMicroSteps;
  } else {
    const StepClock clock{s.engine.issue_ns(), s.engine.completion_ns(), step.step_ns};
    device_calls = s.fill_memory(p.memory, plan, s.schedule, clock, replays, options.timeline);
  }
  s.fill_time(p.time, plan, step, device_calls * s.profile.stack.host.device_allocation_s);
  p.communication = communication_bytes(s.schedule);
  p.extrapolated =
      extrapolations(s.profile.uncertainty, s.model, cluster, s.profile.stack.id, plan);
  if (options.timeline != nullptr) {
    options.timeline->source = "predicted";
    options.timeline->step_ns = step.step_ns;
    options.timeline->streams.clear();
    for (const Stream& stream : s.schedule.streams)
      options.timeline->streams.emplace_back(stream.name);
    std::stable_sort(options.timeline->spans.begin(), options.timeline->spans.end(),
                     [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
    // The host goes from one operation straight to the next.
    const std::vector<Nanoseconds>& begins = s.engine.issue_ns();
    options.timeline->host.clear();
    for (std::size_t id = 0; id < begins.size(); ++id) {
      const Nanoseconds end =
          id + 1 < begins.size() ? begins[id + 1] : s.engine.completion_ns()[id];
      if (end <= begins[id]) continue;
      Span& span = options.timeline->host.emplace_back();
      span.id = static_cast<OpId>(id);
      span.begin_ns = begins[id];
      span.end_ns = end;
    }
  }
  return p;
}

Prediction predict(const Model& model, const profiles::Profile& profile, const Plan& plan,
                   const PredictOptions& options) {
  return Predictor(model, profile).predict(plan, options);
}

}  // namespace shardwright::sim
