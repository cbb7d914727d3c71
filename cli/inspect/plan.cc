// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/inspect/inspect.h"
#include "cli/render/text/json_text.h"
#include "cli/render/text/quantity.h"
#include "cli/render/text/terminal.h"
#include "cli/text.h"
#include "sim/core/base/json_file.h"
#include "sim/core/plan_json.h"

namespace shardwright::cli {
namespace {

using nlohmann::ordered_json;

std::string sharding_words(const Plan& plan) {
  const bool whole = plan.shard_group == 0 || plan.shard_group == plan.gpus;
  const bool node = info_of(plan.strategy).hybrid && plan.shard_group == 0;
  const std::string group = node    ? "a node"
                            : whole ? "all GPUs"
                                    : fmt::format("groups of {}", plan.shard_group);
  return shardwright::sharding_words(plan.strategy, group);
}

std::string checkpointing_words(const Plan& plan) {
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return "no layer is recomputed";
  const std::string what =
      plan.recompute == Recompute::kFull ? "the whole layer" : recompute_name(plan);
  if (plan.ckpt_stride == 1)
    return fmt::format("{} in the first {} layers", what, plan.ckpt_layers);
  return fmt::format("{} in {} layers, one of every {}", what, plan.ckpt_layers, plan.ckpt_stride);
}

Table plan_table(const Plan& plan) {
  const std::int64_t sequences = plan.gpus * plan.micro_batch * plan.grad_accum;
  Table table({"", "", ""});
  table.add_row({"strategy", name_of(plan.strategy), sharding_words(plan)});
  table.add_row({"GPUs", plan.gpus, ""});
  table.add_row({"sequence", plan.seq_len, "tokens"});
  table.add_row(
      {"batch", fmt::format("{} x {}", plan.micro_batch, plan.grad_accum),
       fmt::format("sequences a micro-batch x micro-batches on each rank: {} sequences, {} "
                   "tokens a step",
                   sequences, sequences * plan.seq_len)});
  table.add_row({"recompute", recompute_name(plan), checkpointing_words(plan)});
  table.add_row({"dtypes",
                 fmt::format("{}/{}/{}/{}", name_of(plan.param_dtype), name_of(plan.reduce_dtype),
                             name_of(plan.master_dtype), name_of(plan.moment_dtype)),
                 "parameters in compute, gradient reduction, master weights, Adam moments"});
  table.add_row({"buffers", plan.buffers, "rotating gather buffers"});
  table.add_row({"prefetch", plan.prefetch, "units gathered ahead"});
  table.add_row({"attention", name_of(plan.attention),
                 plan.deterministic ? "deterministic: gradients are added in one order" : ""});
  table.add_row({"offload", offload_name(plan), ""});
  table.add_row({"stack", plan.stack, "the framework that runs it"});
  return table;
}

/// The headline of the prediction inside the file, or nothing.
std::string prediction_words(const PlanDocument& document, const std::string& file) {
  if (document.prediction.empty()) return "";
  const JsonFile prediction = JsonFile::parse(document.prediction, file + " (prediction)");
  const JsonReader root = prediction.root();
  std::vector<std::string> parts;
  if (const auto seconds = root.find<double>("iteration_time_s")) {
    parts.push_back(quantity(*seconds, "s") + " a step");
  }
  if (const auto tokens = root.find<double>("tokens_per_s")) {
    parts.push_back(fmt::format("{:.0f} tokens/s", *tokens));
  }
  if (const auto mfu = root.find<double>("mfu")) {
    parts.push_back(fmt::format("MFU {:.1f} %", 100 * *mfu));
  }
  if (const auto memory = root.find_object("memory")) {
    if (const auto total = memory->find<double>("total_bytes")) {
      parts.push_back(bytes(*total) + " of memory a GPU");
    }
  }
  return parts.empty() ? "" : fmt::format("Predicted: {}.\n", fmt::join(parts, ", "));
}

std::string origin_words(const PlanDocument& document) {
  const std::string& version = document.tool_version;
  if (document.command.empty())
    return version.empty() ? "" : "Made by shardwright " + version + ".";
  return fmt::format("Made by: {}{}", document.command,
                     version.empty() ? "" : fmt::format(" (version {})", version));
}

}  // namespace

std::string inspect_plan(const std::string& path, Form form, const Terminal& out) {
  const PlanDocument document = read_plan(path);
  if (form == Form::kJson) {
    ordered_json inspection{{"schema", "shardwright.inspection/1.0"},
                            {"kind", "plan"},
                            {"name", path},
                            {"document", parse_ordered_json(plan_text(document))}};
    return json_text(inspection) + "\n";
  }
  const auto named = [](const std::string& name) { return name.empty() ? "not named" : name; };
  std::string text = fmt::format(
      "{}\n{}\n", paint(out, Style::kBold, printable("plan " + path, out.utf8)),
      paragraph(
          fmt::format("Model: {}; cluster: {}.", named(document.model), named(document.cluster)),
          out));
  text += plan_table(document.plan).render(out);
  const std::string predicted = prediction_words(document, path);
  if (!predicted.empty()) text += "\n" + predicted;
  const std::string origin = origin_words(document);
  return origin.empty() ? text : text + "\n" + paragraph(origin, out);
}

}  // namespace shardwright::cli
