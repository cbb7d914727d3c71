// SPDX-License-Identifier: Apache-2.0
#include "cli/config/smallest_change.h"

#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/ledger/ledger_profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "sim/core/plan_json.h"
#include "tuner/advice/advice.h"

namespace shardwright::cli {
namespace {

/// The next stage of saving memory by one knob; none: no further.
using Step = std::function<std::optional<Plan>(const Plan&)>;

constexpr std::int64_t kLossPieces = 8;
constexpr std::size_t kFewStages = 8;

std::optional<Plan> with_more_layers(const Plan& plan, std::int64_t layers,
                                     ConfigFormat::Layers kind) {
  const bool full = plan.recompute == Recompute::kFull;
  const std::int64_t now = full && plan.ckpt_stride == 1 ? plan.ckpt_layers : 0;
  if (now >= layers) return std::nullopt;
  Plan more = plan;
  more.recompute = Recompute::kFull;
  more.pieces = 0;
  more.ckpt_stride = 1;
  more.ckpt_layers = kind == ConfigFormat::Layers::kAny ? now + 1 : layers;
  return more;
}

std::optional<Plan> with_half_the_batch(const Plan& plan) {
  if (plan.micro_batch % 2 != 0) return std::nullopt;
  Plan less = plan;
  less.micro_batch /= 2;
  less.grad_accum *= 2;
  return less;
}

std::optional<Plan> with_loss_in_pieces(const Plan& plan) {
  if (plan.loss_chunks > 1) return std::nullopt;
  Plan pieces = plan;
  pieces.loss_chunks = kLossPieces;
  return pieces;
}

std::optional<Plan> with_expandable_segments(const Plan& plan) {
  if (plan.allocator == AllocatorKind::kExpandable) return std::nullopt;
  Plan expandable = plan;
  expandable.allocator = AllocatorKind::kExpandable;
  return expandable;
}

std::optional<Plan> with_more_model_parallel(const Plan& plan) {
  Plan more = plan;
  switch (plan.strategy) {
    case Strategy::kDdp:
      more.strategy = plan.stack == "hf-eager" ? Strategy::kZero1 : Strategy::kFsdp2;
      break;
    case Strategy::kZero1:
      more.strategy = Strategy::kZero2;
      break;
    case Strategy::kZero2:
      more.strategy = Strategy::kZero3;
      break;
    case Strategy::kFsdp1GradOp:
      more.strategy = Strategy::kFsdp1;
      break;
    case Strategy::kFsdp2NoReshard:
      more.strategy = Strategy::kFsdp2;
      break;
    case Strategy::kYafsdpZero2:
      more.strategy = Strategy::kYafsdp;
      break;
    default:
      return std::nullopt;
  }
  return more;
}

std::optional<Plan> with_optimizer_offloaded(const Plan& plan) {
  if (plan.offload != Offload::kNone || !plan.parallel.plain()) return std::nullopt;
  Plan offloaded = plan;
  offloaded.offload = Offload::kOptimizer;
  return offloaded;
}

std::optional<Plan> with_8bit_moments(const Plan& plan) {
  if (plan.numerics.optimizer != Optimizer::kAdamw || plan.numerics.lora > 0) return std::nullopt;
  Plan narrow = plan;
  narrow.numerics.optimizer = Optimizer::kAdamw8bit;
  return narrow;
}

/// Adapters, then over weights in eight and in four bits.
std::optional<Plan> with_adapters(const Plan& plan, bool dense) {
  Plan adapted = plan;
  Numerics& n = adapted.numerics;
  if (!dense || n.quantize == Quantize::kNf4) return std::nullopt;
  if (n.lora == 0) {
    n.lora = tuner::kUsualLoraRank;
    n.optimizer = Optimizer::kAdamw;
    adapted.offload = Offload::kNone;
  } else {
    n.quantize = n.quantize == Quantize::kNone ? Quantize::kInt8 : Quantize::kNf4;
  }
  return adapted;
}

class Changer {
 public:
  Changer(const sim::Job& job, const Plan& plan, ConfigFormat::Layers kind,
          sim::MemoryVerdict worst)
      : job_(job), plan_(plan), worst_(worst), trainer_(job.profile) {
    trainer_.stack = profiles::load_stack(profiles::usual_fine_tuning_stack()).stack;
    const std::int64_t layers = job.model.layers;
    steps_ = {[layers, kind](const Plan& p) { return with_more_layers(p, layers, kind); },
              with_half_the_batch, with_loss_in_pieces, with_expandable_segments,
              with_more_model_parallel};
  }

  std::optional<SmallestChange> find() {
    search();
    if (!best_) {
      // What copies to the host cost is not in the prediction.
      steps_.emplace_back(with_optimizer_offloaded);
      steps_.emplace_back(with_8bit_moments);
      search();
    }
    if (!best_) {
      // The last resort: no longer every weight is trained.
      steps_.emplace_back(
          [dense = !job_.model.is_moe()](const Plan& p) { return with_adapters(p, dense); });
      search();
    }
    if (!best_) return std::nullopt;
    return SmallestChange{changes_between(plan_, best_->plan), *best_};
  }

 private:
  std::optional<sim::Prediction> predicted(const Plan& plan) const {
    try {
      check_plan(plan, job_.model, job_.profile.cluster.gpus_per_node);
      // A framework that has no adapters or other optimizers runs under the one that adds them.
      const Stack& stack = job_.profile.stack;
      const bool own =
          plan.numerics == plan_.numerics || beyond(plan, stack.parallel.features()).empty();
      if (own) return sim::predict(job_.model, job_.profile, plan);
      Plan there = plan;
      there.stack = trainer_.stack.id;
      return sim::predict(job_.model, trainer_, there);
    } catch (const InvalidPlan&) {
      return std::nullopt;  // the stack has no such plan
    }
  }

  void search() {
    for (const Step& step : steps_) go(plan_, step);
    if (best_) return;
    for (std::size_t first = 0; first < steps_.size(); ++first) pair_with(first);
  }

  /// One knob as far as it goes, or stage by stage where there are few; then another.
  void pair_with(std::size_t first) {
    std::vector<Plan> stages = stages_of(plan_, steps_[first]);
    if (stages.size() > kFewStages) stages.erase(stages.begin(), stages.end() - 1);
    for (const Plan& stage : stages) {
      for (std::size_t second = 0; second < steps_.size(); ++second) {
        if (second != first) go(stage, steps_[second]);
      }
    }
  }

  static std::vector<Plan> stages_of(const Plan& from, const Step& step) {
    std::vector<Plan> plans;
    for (std::optional<Plan> next = step(from); next; next = step(*next)) plans.push_back(*next);
    return plans;
  }

  /// As few steps as it takes to fit. More steps never take more memory, so it halves.
  void go(const Plan& from, const Step& step) {
    const std::vector<Plan> plans = stages_of(from, step);
    std::size_t low = 0, high = plans.size();
    std::optional<sim::Prediction> found;
    while (low < high) {
      const std::size_t middle = low + (high - low) / 2;
      std::optional<sim::Prediction> prediction = predicted(plans[middle]);
      if (prediction && prediction->memory.verdict <= worst_) {
        found = std::move(prediction);
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    if (found && (!best_ || found->time.tokens_per_s > best_->time.tokens_per_s))
      best_ = std::move(found);
  }

  const sim::Job& job_;
  const Plan& plan_;
  sim::MemoryVerdict worst_;
  profiles::Profile trainer_;  // the job's with the usual framework of fine-tuning
  std::vector<Step> steps_;
  std::optional<sim::Prediction> best_;
};

}  // namespace

std::vector<KnobChange> changes_between(const Plan& from, const Plan& to) {
  // A plan that shares data alone leaves unsaid what the other one may say: adapters make it say
  // all.
  Plan said = from;
  const bool adapted = from.numerics.lora > 0;
  if (!adapted) said.numerics.lora = tuner::kUsualLoraRank;
  nlohmann::ordered_json before = plan_to_json(said);
  const nlohmann::ordered_json after = plan_to_json(to);
  if (!adapted) before.erase("lora");
  const auto text = [](const std::string& knob, const nlohmann::ordered_json& value) {
    if (value.is_null()) {
      const bool of_framework = knob == "loss_chunks" || knob == "allocator";
      return std::string(of_framework ? "the framework's own" : "none");
    }
    return value.is_string() ? value.get<std::string>() : value.dump();
  };
  std::vector<KnobChange> changes;
  for (const auto& [knob, value] : after.items()) {
    const nlohmann::ordered_json old = before.contains(knob) ? before.at(knob) : nullptr;
    if (old != value) changes.push_back({knob, text(knob, old), text(knob, value)});
  }
  return changes;
}

std::optional<SmallestChange> smallest_change(const sim::Job& job, const Plan& plan,
                                              ConfigFormat::Layers layers,
                                              sim::MemoryVerdict worst) {
  return Changer(job, plan, layers, worst).find();
}

}  // namespace shardwright::cli
