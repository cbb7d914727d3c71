// SPDX-License-Identifier: Apache-2.0
#include "sim/core/executed_plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <optional>

#include "sim/core/base/invalid_plan.h"
#include "sim/core/features.h"
#include "sim/core/parallelism.h"
#include "sim/core/trained_families.h"
#include "sim/core/trained_precision.h"

namespace shardwright {

namespace {

/// Beside products in fp8.
constexpr Features kExecuted = {Feature::kTensor, Feature::kPipeline};

/// The first thing of tensor parallelism or a pipeline that a plan asks for and the executor does
/// not run: in short, and as a sentence that goes on with what it expects.
struct Beyond {
  std::string what, sentence;
};

std::optional<Beyond> beyond_model_parallel(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  if (p.tp * p.pp > 1 && plan.numerics.precision == Precision::kFp8) {
    const std::string size =
        p.tp > 1 ? fmt::format("tp is {}", p.tp) : fmt::format("pp is {}", p.pp);
    return Beyond{"precision is fp8 and " + size,
                  "precision is fp8, but " + size +
                      ", and the executor multiplies so with data parallelism only"};
  }
  if (p.pp > 1 && p.schedule() == PipelineKind::kDualpipe) {
    const std::string what = "pp_schedule is dualpipe";
    return Beyond{what, what + ", which the executor does not run"};
  }
  return std::nullopt;
}

}  // namespace

std::string beyond_execution(const Plan& plan) {
  if (const auto beyond = beyond_model_parallel(plan)) return beyond->what;
  return beyond(with_products_in_bf16(plan), kExecuted);
}

void check_executed(const Plan& plan, std::string_view expected) {
  if (const auto beyond = beyond_model_parallel(plan))
    throw InvalidPlan(fmt::format("{}, expected {}", beyond->sentence, expected));
  refuse_beyond(with_products_in_bf16(plan), kExecuted,
                "the executor runs data, tensor and pipeline parallelism only", expected);
}

namespace {

/// What the executor does not do for a model in sequences of that length, as "has experts".
std::string beyond_executor(const Model& model, std::int64_t seq_len) {
  if (!model.planning_only.empty()) return model.planning_only;
  if (!is_trained_family(model.family)) return fmt::format("is of the family {}", model.family);
  if (attended_share(model, seq_len) < 1) {
    return fmt::format("attends to a window of {} tokens in longer sequences",
                       model.sliding_window);
  }
  return "";
}

/// Of what is neither the model's nor parallel.
std::string beyond_device(const Plan& plan) {
  if (plan.attention != AttentionKind::kFlash) {
    return fmt::format("attention is {}, expected flash: the executor has no other",
                       name_of(plan.attention));
  }
  if (plan.offload != Offload::kNone) {
    return fmt::format("offload is {}, expected none: the executor keeps everything on its device",
                       offload_name(plan));
  }
  return "";
}

}  // namespace

std::string why_not_run(const Model& model, const Plan& plan) {
  if (std::string why = untrained_precision(model, plan); !why.empty()) return why;
  if (std::string what = beyond_executor(model, plan.seq_len); !what.empty())
    return fmt::format("the model {}, which run does not train", what);
  if (std::string beyond = beyond_execution(plan); !beyond.empty())
    return beyond + ", and run does not train so";
  return beyond_device(plan);
}

void check_run(const Plan& plan, const Model& model) {
  check_trained_precision(model, plan);
  if (std::string what = beyond_executor(model, plan.seq_len); !what.empty()) {
    throw Error(fmt::format(
        "model '{}' {}, which the executor does not run; expected a decoder like {} or "
        "{}",
        model.name, what, fmt::join(kTrainedFamilies.begin(), kTrainedFamilies.end() - 1, ", "),
        kTrainedFamilies.back()));
  }
  if (!model.dropout.empty()) {
    throw Error(
        fmt::format("model '{}': {}, but the executor drops nothing out, expected 0 or "
                    "--dropout none",
                    model.name, model.dropout));
  }
  if (std::string what = beyond_device(plan); !what.empty()) throw Error(what);
  check_executed(plan, "a plan without it");
}

}  // namespace shardwright
