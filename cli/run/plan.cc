#include "cli/run/plan.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "sim/core/error.h"
#include "sim/core/nearest.h"
#include "sim/core/parse_number.h"

namespace shardwright::cli {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

void set_layers(const RunSettings& settings, std::int64_t layers, Plan& plan) {
  if (settings.given("recompute")) {
    try {
      set_recompute(plan, settings.text("recompute"));
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", settings.at("recompute").name, error.what()));
    }
    if (plan.recompute == Recompute::kNone) {
      plan.ckpt_layers = 0;
    } else if (plan.ckpt_layers == 0) {
      plan.ckpt_layers = layers;
    }
  }
  if (settings.given("ckpt-layers")) {
    plan.ckpt_stride = 1;
    plan.ckpt_layers =
        settings.text("ckpt-layers") == "all" ? layers : settings.count("ckpt-layers", {0, layers});
    if (plan.ckpt_layers > 0 && plan.recompute == Recompute::kNone &&
        !settings.given("recompute")) {
      plan.recompute = Recompute::kFull;
    }
  }
  if (plan.ckpt_layers == 0) {
    plan.recompute = Recompute::kNone;
    plan.pieces = 0;
  }
}

std::int64_t decide_ranks(RunSettings& settings, const Plan& plan, bool from_file,
                          const exec::LaunchEnvironment& launch) {
  const bool given = settings.given("ranks");
  const std::int64_t wished = given       ? settings.count("ranks", {1, kMostRanks})
                              : from_file ? plan.gpus
                                          : launch.ranks;
  if (launch.launcher == exec::Launcher::kNone) return wished;
  if (given && wished != launch.ranks) {
    settings.fail("ranks", fmt::format("{}, the number of processes that {} started", launch.ranks,
                                       name_of(launch.launcher)));
  }
  return launch.ranks;
}

}  // namespace

Plan run_plan(RunSettings& settings, const PlanDocument& document, const Model& model,
              const exec::LaunchEnvironment& launch, DeviceKind device) {
  const std::string& file = settings.text("plan");
  const bool from_file = !file.empty();
  Plan plan = document.plan;
  if (!from_file) {
    plan.ckpt_layers = 0;
    plan.param_dtype = device == DeviceKind::kCuda ? DType::kBf16 : DType::kFp32;
    plan.seq_len = std::min(plan.seq_len, model.max_positions);
    if (model.sliding_window > 0) plan.seq_len = std::min(plan.seq_len, model.sliding_window);
  }
  const std::int64_t ranks = decide_ranks(settings, plan, from_file, launch);
  if (plan.shard_group == plan.gpus || plan.shard_group > ranks) plan.shard_group = 0;
  plan.gpus = ranks;
  if (!from_file && ranks == 1) plan.strategy = Strategy::kSingle;

  const auto count = [&](const char* key, auto& target, std::int64_t least, std::int64_t most) {
    if (!settings.given(key)) return;
    target =
        static_cast<std::remove_reference_t<decltype(target)>>(settings.count(key, {least, most}));
  };
  const auto dtype = [&](const char* key, DType& target) {
    if (settings.given(key)) target = *dtype_from(settings.word(key, {"fp32", "bf16"}));
  };
  if (settings.given("strategy")) {
    plan.strategy = *strategy_from(settings.word("strategy", strategy_names()));
  }
  count("shard-group", plan.shard_group, 1, kMostRanks);
  count("seq-len", plan.seq_len, 1, 1 << 24);
  count("micro-batch", plan.micro_batch, 1, 1 << 20);
  count("grad-accum", plan.grad_accum, 1, 1 << 20);
  count("buffers", plan.buffers, 1, std::numeric_limits<int>::max());
  count("prefetch", plan.prefetch, 0, std::numeric_limits<int>::max());
  dtype("param-dtype", plan.param_dtype);
  dtype("reduce-dtype", plan.reduce_dtype);
  dtype("moment-dtype", plan.moment_dtype);
  set_layers(settings, model.layers, plan);

  const std::string origin = from_file ? file : "default";
  const auto decided = [&](const char* key, std::string value) {
    settings.decide(key, std::move(value), origin);
  };
  settings.decide("ranks", fmt::format("{}", plan.gpus),
                  launch.launcher == exec::Launcher::kNone ? origin : name_of(launch.launcher));
  decided("strategy", std::string(name_of(plan.strategy)));
  if (plan.shard_group > 0) decided("shard-group", fmt::format("{}", plan.shard_group));
  decided("seq-len", fmt::format("{}", plan.seq_len));
  decided("micro-batch", fmt::format("{}", plan.micro_batch));
  decided("grad-accum", fmt::format("{}", plan.grad_accum));
  // A stride is the plan file's alone; the number of layers would undo it.
  if (plan.ckpt_stride == 1) decided("ckpt-layers", fmt::format("{}", plan.ckpt_layers));
  decided("recompute", recompute_name(plan));
  decided("param-dtype", std::string(name_of(plan.param_dtype)));
  decided("reduce-dtype", std::string(name_of(plan.reduce_dtype)));
  decided("moment-dtype", std::string(name_of(plan.moment_dtype)));
  decided("buffers", fmt::format("{}", plan.buffers));
  decided("prefetch", fmt::format("{}", plan.prefetch));
  return plan;
}

}  // namespace shardwright::cli
