// SPDX-License-Identifier: Apache-2.0
#include "sim/core/plan_json.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "sim/core/atomic_file.h"
#include "sim/core/check.h"
#include "sim/core/error.h"
#include "sim/core/parallel_json.h"
#include "sim/core/read_file.h"
#include "sim/core/schema.h"

namespace shardwright {
namespace {

constexpr std::string_view kSchema = "shardwright.plan";
constexpr int kMajor = 1;

std::int64_t count(const JsonReader& object, std::string_view key, std::int64_t fallback,
                   std::int64_t least) {
  return object.optional<std::int64_t>(key, fallback, at_least(least));
}

template <typename Enum>
Enum word(const JsonReader& object, std::string_view key, Enum fallback,
          std::optional<Enum> (*from)(std::string_view), const std::string& accepted) {
  if (!object.has(key)) return fallback;
  const std::optional<Enum> value = from(object.require<std::string>(key));
  if (!value) object.fail(key, accepted);
  return *value;
}

DType dtype(const JsonReader& object, std::string_view key, DType fallback) {
  return word(object, key, fallback, dtype_from, "fp32 or bf16");
}

void read_recompute(const JsonReader& object, Plan& plan) {
  if (!object.has("recompute")) return;
  try {
    set_recompute(plan, object.require<std::string>("recompute"));
  } catch (const Error&) {
    object.fail("recompute",
                "none, full, selective-op, or a list of norm, swiglu, ffn, attention, block");
  }
}

/// Keys of a plan that nobody asked for.
void refuse_others(const JsonReader& object, const std::set<std::string, std::less<>>& asked) {
  for (const std::string& key : object.keys()) {
    if (key.starts_with('_') || asked.contains(key)) continue;
    throw Error(fmt::format("{}: {}{}{} is not a known key, expected one of {}", object.file(),
                            object.path(), object.path().empty() ? "" : ".", key,
                            fmt::join(asked, ", ")));
  }
}

}  // namespace

nlohmann::ordered_json plan_to_json(const Plan& plan) {
  nlohmann::ordered_json object = {{"strategy", name_of(plan.strategy)},
                                   {"gpus", plan.gpus},
                                   {"shard_group", plan.shard_group},
                                   {"seq_len", plan.seq_len},
                                   {"micro_batch", plan.micro_batch},
                                   {"grad_accum", plan.grad_accum},
                                   {"ckpt_layers", plan.ckpt_layers},
                                   {"ckpt_stride", plan.ckpt_stride},
                                   {"recompute", recompute_name(plan)},
                                   {"param_dtype", name_of(plan.param_dtype)},
                                   {"reduce_dtype", name_of(plan.reduce_dtype)},
                                   {"master_dtype", name_of(plan.master_dtype)},
                                   {"moment_dtype", name_of(plan.moment_dtype)},
                                   {"buffers", plan.buffers},
                                   {"prefetch", plan.prefetch},
                                   {"attention", name_of(plan.attention)},
                                   {"offload", offload_name(plan)},
                                   {"stack", plan.stack}};
  if (plan.deterministic) object["deterministic"] = true;
  if (plan.loss_chunks > 0) object["loss_chunks"] = plan.loss_chunks;
  if (plan.allocator != AllocatorKind::kStack) object["allocator"] = name_of(plan.allocator);
  parallel_to_json(plan, object);
  return object;
}

Plan plan_from_json(const JsonReader& given) {
  std::set<std::string, std::less<>> asked;
  const JsonReader object = given.noting(asked);
  Plan plan;
  object.require<std::string>("strategy");
  plan.strategy = word(object, "strategy", plan.strategy, strategy_from,
                       fmt::format("one of {}", fmt::join(strategy_names(), ", ")));
  plan.gpus = object.require<std::int64_t>("gpus", at_least<std::int64_t>(1));
  plan.shard_group = count(object, "shard_group", plan.shard_group, 0);
  plan.seq_len = count(object, "seq_len", plan.seq_len, 1);
  plan.micro_batch = count(object, "micro_batch", plan.micro_batch, 1);
  plan.grad_accum = count(object, "grad_accum", plan.grad_accum, 1);
  plan.ckpt_layers = count(object, "ckpt_layers", plan.ckpt_layers, 0);
  plan.ckpt_stride = count(object, "ckpt_stride", plan.ckpt_stride, 1);
  read_recompute(object, plan);
  plan.param_dtype = dtype(object, "param_dtype", plan.param_dtype);
  plan.reduce_dtype = dtype(object, "reduce_dtype", plan.reduce_dtype);
  plan.master_dtype = dtype(object, "master_dtype", plan.master_dtype);
  plan.moment_dtype = dtype(object, "moment_dtype", plan.moment_dtype);
  plan.buffers = object.optional<int>("buffers", plan.buffers, at_least(1));
  plan.prefetch = object.optional<int>("prefetch", plan.prefetch, at_least(0));
  plan.attention = word(object, "attention", plan.attention, attention_from, "flash or eager");
  if (object.has("offload") && !set_offload(plan, object.require<std::string>("offload"))) {
    object.fail("offload", "none, optimizer or activations:N, N a number of layers");
  }
  plan.loss_chunks = count(object, "loss_chunks", plan.loss_chunks, 1);
  plan.allocator =
      word(object, "allocator", plan.allocator, allocator_from, "native or expandable");
  plan.stack = object.optional<std::string>("stack", plan.stack);
  parallel_from_json(object, plan);
  plan.deterministic = object.optional<bool>("deterministic", plan.deterministic);
  refuse_others(given, asked);
  return plan;
}

PlanDocument parse_plan(std::string_view text, std::string name) {
  const JsonFile file = JsonFile::parse(text, std::move(name));
  const JsonReader root = file.root();
  require_schema(root, kSchema, kMajor);
  PlanDocument document;
  document.model = root.optional<std::string>("model", "");
  document.cluster = root.optional<std::string>("cluster", "");
  document.plan = plan_from_json(root.require_object("plan"));
  const auto text_of = [&](std::string_view key) {
    // Parsed again, because only ordered_json keeps the order in which the keys were written.
    return root.find_object(key) ? nlohmann::ordered_json::parse(text)[std::string(key)].dump()
                                 : std::string();
  };
  document.model_config = text_of("model_config");
  document.cluster_file = text_of("cluster_file");
  if (root.has("set")) document.overrides = root.require_list<std::string>("set");
  document.prediction = text_of("prediction");
  document.command = root.optional<std::string>("command", "");
  document.tool_version = root.optional<std::string>("tool_version", "");
  return document;
}

PlanDocument read_plan(const std::filesystem::path& path) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;
  return parse_plan(read_file(path, kMostBytes), path.string());
}

std::string plan_text(const PlanDocument& document) {
  nlohmann::ordered_json root = {{"schema", fmt::format("{}/{}.0", kSchema, kMajor)},
                                 {"model", document.model},
                                 {"cluster", document.cluster},
                                 {"plan", plan_to_json(document.plan)}};
  if (!document.overrides.empty()) root["set"] = document.overrides;
  const auto embed = [&root](const char* key, const std::string& object) {
    if (object.empty()) return;
    root[key] = nlohmann::ordered_json::parse(object, nullptr, false);
    SHARDWRIGHT_CHECK(root[key].is_object(), "{} is a JSON object", key);
  };
  embed("prediction", document.prediction);
  if (!document.command.empty()) root["command"] = document.command;
  root["tool_version"] = document.tool_version;
  embed("model_config", document.model_config);
  embed("cluster_file", document.cluster_file);
  // File names may hold bytes that are not UTF-8.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_plan(const std::filesystem::path& path, const PlanDocument& document) {
  write_file_atomically(path, plan_text(document));
}

}  // namespace shardwright
