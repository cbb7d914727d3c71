// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/explain.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/numbers.h"
#include "sim/core/base/words.h"
#include "sim/cost/cost.h"
#include "sim/engine/stragglers.h"
#include "sim/pipeline/pipeline_step.h"
#include "sim/pipeline/step_program.h"
#include "sim/program/expert_program.h"

namespace shardwright::sim {

namespace {

struct Kernel {
  Nanoseconds begin = 0, end = 0;
  StepPart part = StepPart::kForward;
  WorkKind work = WorkKind::kMemory;
};

StepPart step_part_of(Phase phase) {
  switch (phase) {
    case Phase::kForward:
    case Phase::kLoss:
      return StepPart::kForward;
    case Phase::kRecompute:
    case Phase::kBackward:
    case Phase::kReduce:
      return StepPart::kBackward;
    case Phase::kOptimizer:
      return StepPart::kOptimizer;
    case Phase::kPrepare:
      break;
  }
  return StepPart::kEnds;
}

void add_kernel_time(PartTimes& part, WorkKind work, double time_s) {
  part.kernels_s += time_s;
  if (work == WorkKind::kGemm) {
    part.products_s += time_s;
  } else if (work == WorkKind::kAttention) {
    part.attention_s += time_s;
  } else {
    part.memory_bound_s += time_s;
  }
}

}  // namespace

std::string_view name_of(StepPart part) {
  static constexpr auto kNames =
      words_up_to<StepPart::kEnds>("forward", "backward", "optimizer", "ends");
  return name_in(kNames, part);
}

std::string_view name_of(Bound bound) {
  static constexpr auto kNames = words_up_to<Bound::kHost>("kernels", "communication", "host");
  return name_in(kNames, bound);
}

Bound PartTimes::bound() const {
  const double wait_s = std::max(awaits_communication_s, awaits_host_s);
  if (wait_s < 0.05 * total_s() || wait_s == 0) return Bound::kKernels;
  return awaits_communication_s >= awaits_host_s ? Bound::kCommunication : Bound::kHost;
}

StepParts part_times(const Schedule& schedule, const Timeline& timeline) {
  std::vector<std::uint32_t> op_of;
  for_each_op(schedule, [&](const OpInstance& at, const Op&) { op_of.push_back(at.op); });

  StepParts parts{};
  const auto part = [&parts](StepPart which) -> PartTimes& {
    return parts[static_cast<std::size_t>(which)];
  };
  std::vector<Kernel> kernels;
  std::vector<std::pair<Nanoseconds, Nanoseconds>> collectives;
  for (const Span& span : timeline.spans) {
    if (span.id < 0 || static_cast<std::size_t>(span.id) >= op_of.size()) continue;
    const Op& op = schedule.ops[op_of[static_cast<std::size_t>(span.id)]];
    if (!is_collective(op.kind)) {
      kernels.push_back({span.begin_ns, span.end_ns, step_part_of(op.phase), op.work.kind});
      continue;
    }
    collectives.emplace_back(span.begin_ns, span.end_ns);
    PartTimes& issued_in = part(step_part_of(op.phase));
    const bool gather = op.kind == OpKind::kAllGather || op.kind == OpKind::kBroadcast;
    (gather ? issued_in.gathers_s : issued_in.reductions_s) +=
        seconds_of(span.end_ns - span.begin_ns);
    ++(gather ? issued_in.gathers : issued_in.reductions);
  }
  std::sort(kernels.begin(), kernels.end(),
            [](const Kernel& a, const Kernel& b) { return a.begin < b.begin; });

  const SpanUnion communicating(std::move(collectives));
  const auto wait = [&](Nanoseconds begin, Nanoseconds end, StepPart which) {
    const Nanoseconds covered = communicating.overlap(begin, end);
    part(which).awaits_communication_s += seconds_of(covered);
    part(which).awaits_host_s += seconds_of(end - begin - covered);
  };
  Nanoseconds now = 0;
  StepPart before = StepPart::kEnds;  // of the kernel that ended last
  for (const Kernel& kernel : kernels) {
    if (kernel.begin > now) {
      const bool hides_nothing = before == StepPart::kEnds ||
                                 (before != kernel.part && kernel.part == StepPart::kOptimizer);
      wait(now, kernel.begin, hides_nothing ? StepPart::kEnds : kernel.part);
      now = kernel.begin;
    }
    // Kernels of two streams may overlap where one displaces the other; an instant counts once.
    if (kernel.end > now) {
      add_kernel_time(part(kernel.part), kernel.work, seconds_of(kernel.end - now));
      now = kernel.end;
    }
    before = kernel.part;
  }
  if (timeline.step_ns > now) wait(now, timeline.step_ns, StepPart::kEnds);
  return parts;
}

namespace {

using profiles::Profile;

/// Tries changes of one plan and keeps what came of them.
class Trials {
 public:
  Trials(Predictor& predictor, const Plan& plan, const Prediction& base)
      : predictor_(predictor), plan_(plan), base_(base) {}

  void plan(std::string what, std::string also, const std::function<void(Plan&)>& change) {
    Plan changed = plan_;
    change(changed);
    keep(ChangeKind::kPlan, std::move(what), std::move(also),
         [&] { return predictor_.predict(changed); });
  }
  void profile(ChangeKind kind, std::string what, const std::function<void(Profile&)>& change,
               std::string also = "") {
    Profile changed = predictor_.profile();
    change(changed);
    Plan plan = plan_;
    plan.stack = changed.stack.id;
    keep(kind, std::move(what), std::move(also),
         [&] { return predict(predictor_.model(), changed, plan); });
  }
  /// Whether the plan with that change fits; none when it cannot be predicted.
  std::optional<bool> fits(const std::function<void(Plan&)>& change) {
    Plan changed = plan_;
    change(changed);
    try {
      return predictor_.predict(changed).memory.verdict == MemoryVerdict::kFits;
    } catch (const InvalidPlan&) {
      return std::nullopt;
    }
  }
  std::vector<Change> ranked() && {
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.gain > b.gain; });
    return std::move(changes_);
  }

 private:
  template <typename Predict>
  void keep(ChangeKind kind, std::string what, std::string also, Predict predict_changed) {
    try {
      const Prediction changed = predict_changed();
      changes_.push_back({kind, std::move(what), std::move(also), changed.time.iteration_s,
                          changed.time.tokens_per_s / base_.time.tokens_per_s - 1,
                          changed.memory.total_bytes,
                          changed.memory.verdict != MemoryVerdict::kDoesNotFit});
    } catch (const InvalidPlan&) {  // this plan does not admit the change
    }
  }

  Predictor& predictor_;
  const Plan& plan_;
  const Prediction& base_;
  std::vector<Change> changes_;
};

constexpr std::int64_t kLargeVocabulary = 65536;
constexpr std::int64_t kLossPieces = 8;

bool checkpoints(const Plan& plan) {
  return plan.recompute != Recompute::kNone && plan.ckpt_layers > 0;
}

void set_checkpointed(Plan& plan, std::int64_t layers) {
  plan.ckpt_layers = layers;
  if (layers == 0) {
    plan.recompute = Recompute::kNone;
  } else if (plan.recompute == Recompute::kNone) {
    plan.recompute = Recompute::kFull;
  }
}

/// The fewest checkpointed layers with which the plan fits, where `most` are known to be enough.
std::int64_t fewest_that_fit(Trials& trials, std::int64_t most) {
  std::int64_t low = 0, high = most;  // memory never grows with more checkpointed layers
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (trials.fits([&](Plan& p) { set_checkpointed(p, middle); }).value_or(false)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

void try_checkpointing(Trials& trials, const Model& model, const Plan& plan, bool plan_fits) {
  const std::int64_t all = ceil_div(model.layers, plan.ckpt_stride);
  const std::int64_t now = checkpoints(plan) ? plan.ckpt_layers : 0;
  const auto with = [&](std::int64_t layers) {
    return [layers](Plan& p) { set_checkpointed(p, layers); };
  };
  if (now > 0) trials.plan("no layer checkpointed", "", with(0));
  if (plan_fits ? now > 0 : trials.fits(with(all)).value_or(false)) {
    const std::int64_t fewest = fewest_that_fit(trials, plan_fits ? now : all);
    if (fewest != now && fewest != 0) {
      trials.plan(fmt::format("{} layers checkpointed instead of {}", fewest, now),
                  "the fewest that fit", with(fewest));
    }
  } else if (!plan_fits && now < all) {
    trials.plan("all layers checkpointed", "", with(all));
  }
  if (now > 0 && plan.recompute == Recompute::kFull) {
    trials.plan("selective-op recomputation", "",
                [](Plan& p) { p.recompute = Recompute::kSelectiveOp; });
  }
}

void try_plans(Trials& trials, const Model& model, const Plan& plan, bool plan_fits) {
  try_checkpointing(trials, model, plan, plan_fits);
  if (plan.grad_accum % 2 == 0) {
    trials.plan("twice the micro-batch, half the micro-batches", "the same batch", [](Plan& p) {
      p.micro_batch *= 2;
      p.grad_accum /= 2;
    });
  } else {
    trials.plan("twice the micro-batch", "doubles the batch", [](Plan& p) { p.micro_batch *= 2; });
  }
  if (plan.micro_batch % 2 == 0) {
    trials.plan("half the micro-batch, twice the micro-batches", "the same batch", [](Plan& p) {
      p.micro_batch /= 2;
      p.grad_accum *= 2;
    });
  }
  if (model.vocab >= kLargeVocabulary && plan.loss_chunks < kLossPieces) {
    trials.plan(fmt::format("the loss in {} pieces", kLossPieces), "",
                [](Plan& p) { p.loss_chunks = kLossPieces; });
  }
  if (plan.gpus == 1) return;
  trials.plan("twice the micro-batches", "doubles the batch", [](Plan& p) { p.grad_accum *= 2; });
  if (plan.reduce_dtype == DType::kFp32) {
    trials.plan("bf16 gradient reduction", "", [](Plan& p) { p.reduce_dtype = DType::kBf16; });
  }
  for (const Strategy strategy : all_strategies()) {
    const StrategyInfo& info = info_of(strategy);
    if (strategy == plan.strategy || info.one_rank || !info.tuned) continue;
    trials.plan(fmt::format("the strategy {}", name_of(strategy)), "", [&](Plan& p) {
      p.strategy = strategy;
      p.shard_group = 0;
    });
  }
}

void try_software(Trials& trials, const Plan& plan, const Gpu& gpu) {
  for (const std::string& name : profiles::shipped_names(profiles::DataKind::kStack)) {
    if (name == plan.stack) continue;
    const Stack stack = profiles::load_stack(name).stack;
    if (stack.family != name || !stack.offered) continue;
    const bool never_ran = name == "native" && !gpu.is_processor();
    trials.profile(
        ChangeKind::kSoftware, fmt::format("the framework {}", name),
        [&](Profile& p) { p.stack = stack; }, never_ran ? "never run on a GPU" : "");
  }
  trials.profile(ChangeKind::kSoftware, "a host that costs nothing", [](Profile& p) {
    const int synchronizations = p.stack.host.step_synchronizations;
    p.stack.host = {.forward_launch_s = 0, .backward_launch_s = 0};
    p.stack.host.step_synchronizations = synchronizations;
  });
}

void try_hardware(Trials& trials, const Plan& plan, const Cluster& cluster) {
  if (plan.gpus > cluster.gpus_per_node && cluster.nics_per_node > 0) {
    trials.profile(ChangeKind::kHardware, "twice the NIC bandwidth",
                   [](Profile& p) { p.cluster.nic_bytes_per_s *= 2; });
  }
  if (plan.gpus > 1 && cluster.gpus_per_node > 1) {
    trials.profile(ChangeKind::kHardware, "twice the bandwidth between GPUs of a node",
                   [](Profile& p) {
                     auto& c = p.cost.collectives.values;
                     for (auto* protocol : {&c.ll, &c.ll128, &c.simple, &c.nvls_simple}) {
                       protocol->bytes_per_s *= 2;
                     }
                     p.cluster.intra_link_bytes_per_s *= 2;
                   });
  }
  trials.profile(ChangeKind::kHardware, "GEMMs 20 % faster",
                 [](Profile& p) { p.cost.gemm.values.e *= 1.2; });
  trials.profile(ChangeKind::kHardware, "memory bandwidth 20 % higher",
                 [](Profile& p) { p.cluster.gpu.hbm_bytes_per_s *= 1.2; });
}

}  // namespace

std::string_view name_of(ChangeKind kind) {
  static constexpr auto kNames = words_up_to<ChangeKind::kHardware>("plan", "software", "hardware");
  return name_in(kNames, kind);
}

Explanation explain(Predictor& predictor, const Plan& plan) {
  Explanation result;
  Timeline timeline;
  PredictOptions options;
  options.timeline = &timeline;
  result.base = predictor.predict(plan, options);
  // Of a pipeline, stages have parts instead (Prediction::stages).
  const std::vector<Schedule>& stages = predictor.program().stages;
  if (stages.size() == 1) result.parts = part_times(stages.front(), timeline);

  Trials trials(predictor, plan, result.base);
  try_plans(trials, predictor.model(), plan, result.base.memory.verdict == MemoryVerdict::kFits);
  try_software(trials, plan, predictor.profile().cluster.gpu);
  try_hardware(trials, plan, predictor.profile().cluster);
  result.changes = std::move(trials).ranked();
  return result;
}

std::optional<RoutingPrice> routing_price(Predictor& predictor, const Prediction& prediction) {
  const Plan& plan = prediction.plan;
  const ExpertLoad load = plan.parallel.expert_load.value_or(ExpertLoad{});
  const bool pays = predictor.model().is_moe() && !plan.parallel.expert_capacity &&
                    load.routing != Routing::kBalanced;
  if (!pays) return std::nullopt;
  RoutingPrice price;
  price.busiest = busiest_of(predictor.model(), plan, predictor.profile().stack);
  if (price.busiest.of_layer <= 1) return std::nullopt;
  Plan balanced = plan;
  balanced.parallel.expert_load = ExpertLoad{Routing::kBalanced, {}, {}};
  const Prediction even = predictor.predict(balanced);
  price.balanced_s = even.time.iteration_s;
  price.balanced_bytes = even.memory.total_bytes;
  return price;
}

namespace {

Jitter jitter_of_stages(const Predictor& predictor, const Plan& plan, double kernel_spread,
                        std::optional<double> rank_spread) {
  ProgramCache programs(predictor.model(), predictor.profile().stack,
                        predictor.profile().cluster.gpu);
  PipelineSimulator simulator(predictor.model(), predictor.profile(), programs);
  JointOptions options = joint_options(plan);
  options.kernel_spread = kernel_spread;
  options.rank_spread = rank_spread;
  JointStages joint(options);
  const double varied_s = simulator.run_varied(plan, joint).step_s;
  Jitter jitter;
  jitter.ranks = joint.ranks();
  jitter.slowdown = varied_s / simulator.run(plan).step_s - 1;
  // Nothing hides the collectives of layers, nor those after the last pass.
  jitter.waiting_s = jitter.exposed_s = seconds_of(joint.waiting_ns());
  // Slower stages may leave fewer gaps than alike ones.
  jitter.bubble_s = seconds_of(std::max(Nanoseconds{0}, joint.bubble_longer_ns()));
  return jitter;
}

/// As many replicas as fill eight ranks, two at least where there are.
StragglerOptions straggler_options(const Predictor& predictor, const Plan& plan) {
  constexpr int kRanks = 8;
  const JointOptions joint = joint_options(plan);
  StragglerOptions options;
  options.pass_ranks = joint.pass_ranks;
  options.ranks =
      joint.pass_ranks * std::min(joint.replicas, std::max(2, kRanks / joint.pass_ranks));
  options.engine = engine_options(predictor.profile().cluster.gpu);
  return options;
}

Nanoseconds total(const std::array<Nanoseconds, kCommGroups>& by_group) {
  return std::accumulate(by_group.begin(), by_group.end(), Nanoseconds{0});
}

Jitter jitter_of_rank(const Predictor& predictor, const Plan& plan, double kernel_spread,
                      std::optional<double> rank_spread) {
  const Schedule& schedule = predictor.program().stages.front();
  std::vector<OpCost> costs;
  CostModel(predictor.profile()).cost(schedule, costs);
  StragglerOptions options = straggler_options(predictor, plan);
  options.kernel_spread = kernel_spread;
  options.rank_spread = rank_spread;
  const StragglerResult varied = simulate_stragglers(schedule, costs, options);
  const StepTime alone = Engine().run(schedule, costs, options.engine);
  Jitter jitter;
  jitter.ranks = options.ranks;
  jitter.slowdown =
      static_cast<double>(varied.slowest.step_ns) / static_cast<double>(alone.step_ns) - 1;
  jitter.waiting_s = seconds_of(varied.waiting_ns);
  // Slower kernels may hide more than waiting adds.
  jitter.exposed_s =
      seconds_of(std::max(Nanoseconds{0}, total(varied.exposed_ns) - total(alone.exposed_ns)));
  jitter.settled = varied.settled;
  return jitter;
}

}  // namespace

Jitter jitter_of(const Predictor& predictor, const Prediction& prediction, double kernel_spread,
                 std::optional<double> rank_spread) {
  Jitter jitter = prediction.plan.parallel.pp > 1
                      ? jitter_of_stages(predictor, prediction.plan, kernel_spread, rank_spread)
                      : jitter_of_rank(predictor, prediction.plan, kernel_spread, rank_spread);
  jitter.kernel_spread = kernel_spread;
  jitter.iteration_s = prediction.time.iteration_s * (1 + jitter.slowdown);
  return jitter;
}

}  // namespace shardwright::sim
