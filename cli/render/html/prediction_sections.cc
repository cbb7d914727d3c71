// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "cli/render/explanation.h"
#include "cli/render/html/html.h"
#include "cli/render/html/pictures.h"
#include "cli/render/html/report_page.h"
#include "cli/render/text/quantity.h"
#include "cli/render/words/host_share.h"
#include "cli/render/words/plan.h"

namespace shardwright::cli::html {
namespace {

constexpr double kTrillion = 1e12;

std::string tile(std::string_view what, std::string_view value, std::string_view note,
                 std::string_view mood = "") {
  return fmt::format("<div class=\"tile {}\"><span>{}</span><b>{}</b><span>{}</span></div>\n", mood,
                     escape(what), escape(value), escape(note));
}

std::string memory_tile(const sim::MemoryPrediction& memory) {
  const Bytes spare = memory.usable_bytes - memory.total_bytes;
  return tile("Memory of a GPU", name_of(memory.verdict),
              fmt::format("{} {}: {} of {}", bytes(spare < 0 ? -spare : spare),
                          spare < 0 ? "too much" : "to spare", bytes(memory.total_bytes),
                          bytes(memory.usable_bytes)),
              memory.verdict == sim::MemoryVerdict::kDoesNotFit ? "bad"
              : memory.verdict == sim::MemoryVerdict::kTight    ? "warn"
                                                                : "good");
}

std::string money_tile(const Cluster& cluster, const sim::Prediction& prediction) {
  const double hours = kTrillion / prediction.time.tokens_per_s / 3600;
  const std::string days = fmt::format("{} days", thousands(hours / 24));
  if (cluster.usd_per_gpu_hour <= 0) return tile("10^12 tokens", days, "price unknown");
  return tile("10^12 tokens",
              dollars(hours * static_cast<double>(prediction.plan.gpus) * cluster.usd_per_gpu_hour),
              fmt::format("{} at {:.2f} USD per GPU hour", days, cluster.usd_per_gpu_hour));
}

std::string checkpoint_row(const Plan& plan, std::int64_t layers) {
  if (plan.recompute == Recompute::kNone || plan.ckpt_layers == 0) return "no layer is recomputed";
  std::string words =
      fmt::format("{} of {} layers recompute {}", plan.ckpt_layers, layers, recompute_name(plan));
  if (plan.ckpt_stride > 1) words += fmt::format(", one of every {}", plan.ckpt_stride);
  return words;
}

}  // namespace

std::string head_section(const Report& report) {
  if (!report.inputs) return "<h1>Timeline of a step</h1>\n";
  const sim::Job& inputs = *report.inputs;
  const sim::Prediction& prediction = report.explanation->base;
  const sim::TimePrediction& time = prediction.time;
  const Plan& plan = prediction.plan;
  std::string body = element("h1", fmt::format("{} on {} × {}", inputs.model_name, plan.gpus,
                                               inputs.profile.cluster.gpu.id));
  body +=
      element("p",
              fmt::format("{}, {} tokens a sequence; cluster {}, framework {}",
                          name_of(plan.strategy), plan.seq_len, inputs.cluster_name, plan.stack),
              "sub");
  if (const std::string part = part_of_node_words(inputs.profile.cluster, plan.gpus); !part.empty())
    body += element("p", part, "sub");
  if (inputs.usual_length) body += element("p", *inputs.usual_length, "sub");
  body += "<div class=\"tiles\">\n";
  body += tile("Step", duration(time.iteration_s),
               fmt::format("{:.0f} % interval {} to {}", 100 * time.interval_level,
                           duration(time.interval_s[0]), duration(time.interval_s[1])));
  body += tile("Tokens per second", thousands(time.tokens_per_s),
               fmt::format("{} per GPU", thousands(time.tokens_per_gpu_s)));
  body += tile("MFU", percent(time.mfu),
               fmt::format("of {:.3g} TFLOP/s {}; HFU {}", time.peak_flops / 1e12,
                           peak_type_words(inputs.profile.cluster.gpu, plan), percent(time.hfu)));
  body += memory_tile(prediction.memory);
  body += money_tile(inputs.profile.cluster, prediction);
  return body + "</div>\n" + interval_picture(time) +
         element("p", host_sentence(prediction), "sub");
}

std::string asked_section(const Report& report) {
  if (!report.inputs) return "";
  const sim::Job& inputs = *report.inputs;
  const Plan& plan = inputs.plans.front();
  const Cluster& cluster = inputs.profile.cluster;
  const std::int64_t group = resolved_shard_group(plan, cluster.gpus_per_node);
  const std::int64_t sequences =
      plan.gpus / plan.parallel.replica() * plan.micro_batch * plan.grad_accum;
  const auto parameters =
      static_cast<double>(count_parameters(inputs.model).total(inputs.model.layers));
  std::vector<std::vector<std::string>> rows = {
      {"Model", fmt::format("{}: {:.3g} billion parameters, {} layers of {}", inputs.model_name,
                            parameters * 1e-9, inputs.model.layers, inputs.model.hidden)},
      {"GPUs", fmt::format("{} × {}, {} a node, cluster {}", plan.gpus, cluster.gpu.id,
                           cluster.gpus_per_node, inputs.cluster_name)},
      {"Strategy", group == plan.gpus || group == 1
                       ? std::string(name_of(plan.strategy))
                       : fmt::format("{}, shared by groups of {}", name_of(plan.strategy), group)},
      {"Batch",
       fmt::format("{} × {} (sequences × micro-batches) on each {}: {} sequences, {} tokens a step",
                   plan.micro_batch, plan.grad_accum, report.asks_for_stages() ? "replica" : "GPU",
                   sequences, thousands(static_cast<double>(sequences * plan.seq_len)))},
      {"Checkpointing", checkpoint_row(plan, inputs.model.layers)},
      {"Precision", fmt::format("{} parameters, {} reduction, {} master weights, {} moments",
                                name_of(plan.param_dtype), name_of(plan.reduce_dtype),
                                name_of(plan.master_dtype), name_of(plan.moment_dtype))},
      report.asks_for_stages()
          ? std::vector<std::string>{"Division", model_parallel_words(plan)}
          : std::vector<std::string>{"Gathers", fmt::format("{} buffers, {} gathered ahead",
                                                            plan.buffers, plan.prefetch)},
      {"Attention", std::string(name_of(plan.attention))},
      {"Software", fmt::format("{}: {}", plan.stack, inputs.profile.stack.description)}};
  for (const std::string& override : inputs.overrides) rows.push_back({"Set by hand", override});
  return section("What was asked", table({}, rows, 2));
}

std::string memory_section(const Report& report) {
  if (!report.inputs) return "";
  if (report.asks_for_stages()) return stage_memory_section(report);
  const sim::MemoryPrediction& memory = report.explanation->base.memory;
  std::string body = memory_picture(memory);
  body += element(
      "p",
      fmt::format("The peak of {} is allocated at {}; the allocator holds {}, and {} belong to the "
                  "CUDA context, libraries and communicators.",
                  bytes(memory.peak_allocated_bytes), memory.peak_at,
                  bytes(memory.peak_reserved_bytes), bytes(memory.runtime_bytes)),
      "note");
  if (memory.allocator_retries > 0) {
    body += element("p", fmt::format("The allocator runs dry {} times a step and frees its cache.",
                                     memory.allocator_retries));
  }
  return section("Memory of a GPU at its peak", body);
}

std::string time_section(const Report& report) {
  if (!report.inputs) return "";
  if (report.asks_for_stages()) return cause_section(report);
  const sim::Explanation& explanation = *report.explanation;
  std::string body = time_picture(explanation.base.time) + list(explanation_sentences(explanation));
  constexpr std::size_t kMostChanges = 10;
  std::vector<std::vector<std::string>> rows;
  for (const sim::Change& change : explanation.changes) {
    if (rows.size() == kMostChanges) break;
    rows.push_back(
        {change.also.empty() ? change.what : fmt::format("{} ({})", change.what, change.also),
         std::string(name_of(change.kind)), change.fits ? "yes" : "no",
         duration(change.iteration_s), fmt::format("{:+.1f} %", 100 * change.gain),
         bytes(change.total_bytes)});
  }
  if (!rows.empty()) {
    body += "<h3>One change, predicted anew</h3>\n" +
            table({"change", "of", "fits", "step", "tokens/s", "memory"}, rows, 3);
  }
  return section("Where the time goes", body);
}

}  // namespace shardwright::cli::html
