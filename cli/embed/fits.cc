// SPDX-License-Identifier: Apache-2.0
// What fits of the constants ask of the product beyond its verbs (profiles/research): times of
// single kernels by the cost formulas, as often as a minimizer likes, and what published runs
// cover.
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/embed/shardwright.h"
#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/gpu_cost.h"
#include "profiles/ledger/ledger.h"
#include "profiles/ledger/whole_runs.h"
#include "profiles/operations.h"
#include "profiles/uncertainty/production.h"
#include "sim/core/base/error.h"
#include "sim/cost/attention_cost.h"
#include "sim/cost/collectives.h"
#include "sim/score/kernel_scores.h"
#include "sim/uncertainty/intervals.h"
#include "tuner/runs/run_cost.h"
#include "tuner/size/whole_run.h"

#define SHARDWRIGHT_EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using namespace shardwright;
using nlohmann::ordered_json;

thread_local std::string message;

/// What `answer` returns; null and its message where it throws, which must not pass the door.
template <typename Answer>
auto answered(const Answer& answer) -> decltype(answer()) {
  try {
    return answer();
  } catch (const std::exception& error) {
    message = error.what();
    return nullptr;
  }
}

std::int64_t whole(double value) {
  return static_cast<std::int64_t>(value);
}

double attention_of(const profiles::GpuCost& cost, const std::string& kernel, const double* shape) {
  // So many heads that launches and idle SMs play no part, as in published tables.
  constexpr std::int64_t kManyHeads = std::int64_t{1} << 20;
  sim::AttentionShape attention;
  attention.batch_heads = kManyHeads;
  attention.query_length = attention.kv_length = whole(shape[0]);
  return sim::attention_time_s(cost.attention.at(kernel).values, cost.rates.values, attention,
                               shape[1] > 0, cost.rates.values.sm_count) /
         static_cast<double>(kManyHeads);
}

double dispatch_of(const profiles::GpuCost& cost, const double* shape) {
  DispatchShape tokens;
  tokens.tokens = shape[0];
  tokens.token_bytes = shape[1];
  tokens.per_token = whole(shape[2]);
  tokens.experts = whole(shape[3]);
  tokens.ranks = tokens.ranks_in_domain = whole(shape[4]);
  return sim::dispatch_cost(cost.dispatch.values, tokens, 0, static_cast<int>(shape[5])).time_s;
}

double exchange_of(const profiles::GpuCost& cost, const double* shape) {
  DispatchShape bytes;
  bytes.ranks = bytes.ranks_in_domain = whole(shape[0]);
  bytes.tokens = 1;
  bytes.token_bytes = shape[1];
  return sim::exchange_cost(cost.exchange.values, bytes, 0).time_s;
}

struct Formula {
  std::size_t columns = 0;
  std::function<double(const profiles::GpuCost&, const double* shape)> seconds;
};

Formula formula_of(const std::string& kind) {
  constexpr std::string_view kAttention = "attention.";
  if (kind == "gemm") {
    return {3, [](const profiles::GpuCost& cost, const double* shape) {
              const sim::GemmRow row{"", whole(shape[0]), whole(shape[1]), whole(shape[2]), 0, 0};
              return sim::predicted_time_s(row, cost.gemm.values, cost.rates.values);
            }};
  }
  if (kind == "dispatch") return {6, dispatch_of};
  if (kind == "exchange") return {2, exchange_of};
  if (kind.starts_with(kAttention)) {
    return {2, [kernel = kind.substr(kAttention.size())](const profiles::GpuCost& cost,
                                                         const double* shape) {
              return attention_of(cost, kernel, shape);
            }};
  }
  for (const Collective collective :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
    if (kind != name_of(collective)) continue;
    return {2, [collective](const profiles::GpuCost& cost, const double* shape) {
              const sim::CollectiveRow row{"", whole(shape[0]), 1, collective, shape[1], 0, 0, 0};
              return sim::predicted_time_s(row, cost.collectives.values);
            }};
  }
  throw Error("the kernel '" + kind +
              "' has no formula here, expected gemm, attention.KERNEL, dispatch, exchange, "
              "all_gather, reduce_scatter or all_reduce");
}

}  // namespace

struct shardwright_kernels {
  profiles::GpuCost cost;
  std::vector<double*> values;  // of cost
  Formula formula;
  std::vector<double> shapes;
};

SHARDWRIGHT_EXPORTED const char* shardwright_fit_message(void) {
  return message.c_str();
}

SHARDWRIGHT_EXPORTED shardwright_kernels* shardwright_new_kernels(const char* kind, const char* gpu,
                                                                  int rows, const double* shapes,
                                                                  int count,
                                                                  const char* const* paths) {
  return answered([&]() -> shardwright_kernels* {
    auto kernels = std::make_unique<shardwright_kernels>();
    kernels->cost = profiles::load_gpu_costs().at(gpu);
    kernels->formula = formula_of(kind);
    kernels->shapes.assign(shapes,
                           shapes + kernels->formula.columns * static_cast<std::size_t>(rows));
    profiles::FieldList fields;
    describe(fields, kernels->cost);
    for (int i = 0; i < count; ++i) {
      const profiles::Field* field = fields.find(paths[i]);
      double* const* number = field == nullptr ? nullptr : std::get_if<double*>(&field->target);
      if (number == nullptr) throw Error(std::string(paths[i]) + " is no number of " + gpu);
      kernels->values.push_back(*number);
    }
    return kernels.release();
  });
}

SHARDWRIGHT_EXPORTED void shardwright_kernel_times(shardwright_kernels* kernels,
                                                   const double* values, double* seconds) {
  for (std::size_t i = 0; i < kernels->values.size(); ++i) *kernels->values[i] = values[i];
  const std::size_t columns = kernels->formula.columns;
  for (std::size_t row = 0; row * columns < kernels->shapes.size(); ++row) {
    seconds[row] = kernels->formula.seconds(kernels->cost, &kernels->shapes[row * columns]);
  }
}

SHARDWRIGHT_EXPORTED void shardwright_end_kernels(shardwright_kernels* kernels) {
  delete kernels;
}

SHARDWRIGHT_EXPORTED const char* shardwright_trainings(double analytic_mfu) {
  return answered([&]() -> const char* {
    const std::vector<profiles::BatchLaw> laws =
        profiles::load_batch_laws(profiles::data_dir() / "published" / "batch_laws.csv");
    const profiles::Operations operations = profiles::load_operations();
    tuner::IdealHoursOf ideal_of(analytic_mfu);
    ordered_json trainings = ordered_json::array();
    for (const profiles::WholeRun& run :
         profiles::load_whole_runs(profiles::shipped_whole_runs())) {
      ordered_json& json = trainings.emplace_back();
      json = {{"id", run.id},
              {"family", run.family},
              {"scored", run.scored()},
              {"year", run.year},
              {"parameters", run.parameters},
              {"peak_flops", run.peak_flops},
              {"generation", profiles::generation_of(run.peak_flops)},
              {"gpus", run.gpus.value_or(0)},
              {"steady_mfu", run.steady_mfu.value_or(0)},
              {"whole_mfu", run.whole_mfu},
              {"published_gpu_hours", run.gpu_hours},
              {"share_of_critical_batch", ordered_json::object()}};
      if (run.scored() && analytic_mfu > 0) {
        const tuner::IdealHours ideal = ideal_of(run);
        json["ideal_gpu_hours"] = ideal.gpu_hours;
        json["step_half_width"] = ideal.step_half_width;
        json["small_in_large"] = profiles::small_in_large(run.parameters, ideal.gpu_hours);
      }
      if (!run.model || !run.global_batch_tokens || run.tokens <= 0) continue;
      for (const profiles::BatchLaw& law : laws) {
        json["share_of_critical_batch"][law.id] =
            *run.global_batch_tokens /
            tuner::critical_tokens(law, *run.model, run.tokens, operations);
      }
    }
    message = trainings.dump();
    return message.c_str();
  });
}

SHARDWRIGHT_EXPORTED const char* shardwright_covered(const char* ledger) {
  return answered([&]() -> const char* {
    profiles::Uncertainty covered;
    for (const profiles::LedgerRow& row : profiles::load_ledger(ledger)) {
      sim::add_run(covered, row.model, profiles::cluster_of(row).cluster, row.plan.stack, row.plan,
                   row.source);
    }
    message = ordered_json{{"ranges", covered.ranges}, {"seen", covered.seen}}.dump();
    return message.c_str();
  });
}
