// SPDX-License-Identifier: Apache-2.0
#include "cli/render/prediction.h"

#include <nlohmann/json.hpp>

#include "cli/render/json/json_text.h"
#include "cli/render/stages.h"
#include "cli/render/words/origins.h"
#include "cli/render/words/plan.h"
#include "cli/render/words/runs_here.h"
#include "cli/render/words/why.h"
#include "sim/core/layout.h"
#include "sim/core/plan_json.h"
#include "sim/cost/attention_cost.h"

namespace shardwright::cli {
namespace {

using Json = nlohmann::ordered_json;

Json memory_json(const sim::MemoryPrediction& memory) {
  Json breakdown = Json::object();
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    breakdown[std::string(name_of(category))] = memory.breakdown_bytes[static_cast<std::size_t>(i)];
  }
  return {{"fits", memory.fits},
          {"peak_allocated_bytes", memory.peak_allocated_bytes},
          {"peak_active_bytes", memory.peak_active_bytes},
          {"peak_reserved_bytes", memory.peak_reserved_bytes},
          {"runtime_bytes", memory.runtime_bytes},
          {"total_bytes", memory.total_bytes},
          {"usable_bytes", memory.usable_bytes},
          {"interval_bytes", {memory.interval_bytes[0], memory.interval_bytes[1]}},
          {"verdict", name_of(memory.verdict)},
          {"peak_at", memory.peak_at},
          {"allocator_retries", memory.allocator_retries},
          {"breakdown_bytes", std::move(breakdown)}};
}

Json inputs_json(const sim::Job& inputs, const Plan& plan) {
  const Cluster& cluster = inputs.profile.cluster;
  Json json{{"model", inputs.model_name},
            {"parameters", count_parameters(inputs.model).total(inputs.model.layers)},
            {"layers", inputs.model.layers},
            {"cluster", inputs.cluster_name},
            {"gpu", cluster.gpu.id},
            {"gpus_per_node", cluster.gpus_per_node},
            {"peak_flops", cluster.gpu.peak_bf16_flops},
            {"plan", plan_to_json(plan)},
            {"plan_words", plan_words(plan)},
            {"usual_length", or_null(inputs.usual_length)},
            {"set", inputs.overrides}};
  if (const auto attention = sim::planned_attention(inputs.model, plan, inputs.profile)) {
    json["attention"] = {{"kernel", name_of(attention->form)}, {"why", attention->why}};
  }
  if (const std::int64_t each = rack_gpus(plan, inputs.profile.cluster); each > 0) {
    json["racks"] = (plan.gpus - 1) / each + 1;
    json["gpus_of_each_rack"] = each;
  }
  return json;
}

Json novelty_json(const profiles::Profile& profile, const sim::Prediction& prediction) {
  Json json = Json::array();
  for (const NoveltyWords& words : novelty_words(profile, prediction)) {
    json.push_back({{"axis", words.axis},
                    {"class", words.what},
                    {"adds", words.adds},
                    {"measure", words.measure}});
  }
  return json;
}

}  // namespace

Json prediction_json(const sim::Job& inputs, const sim::Prediction& prediction) {
  const sim::TimePrediction& time = prediction.time;
  Json document = {{"schema", "shardwright.prediction/1.0"},
                   {"iteration_time_s", time.iteration_s},
                   {"iteration_time_interval_s", {time.interval_s[0], time.interval_s[1]}},
                   {"interval_level", time.interval_level},
                   {"tokens_per_gpu_s", time.tokens_per_gpu_s},
                   {"tokens_per_s", time.tokens_per_s},
                   {"model_tflops_per_gpu", time.model_flops_per_gpu / 1e12},
                   {"mfu", time.mfu},
                   {"hfu", time.hfu},
                   {"time_s",
                    {{"compute", time.compute_s},
                     {"exposed_communication", time.exposed_communication_s},
                     {"host", time.host_s},
                     {"optimizer", time.optimizer_s},
                     {"other", time.other_s()}}},
                   {"communication_bytes",
                    {{"all_gather", prediction.communication.all_gather},
                     {"reduce_scatter", prediction.communication.reduce_scatter},
                     {"all_reduce", prediction.communication.all_reduce},
                     {"all_to_all", prediction.communication.all_to_all},
                     {"point_to_point", prediction.communication.point_to_point}}},
                   {"memory", memory_json(prediction.memory)},
                   {"extrapolated", prediction.extrapolated},
                   {"novelty", novelty_json(inputs.profile, prediction)},
                   {"inputs", inputs_json(inputs, prediction.plan)}};
  for (const NumberOrigin& origin : number_origins(inputs.profile, prediction))
    document["origins"].push_back({{"what", origin.what}, {"words", origin.words}});
  document["runs_here"] = runs_here_json(runs_here(inputs, prediction.plan));
  add_stages(prediction, document);
  document["host"] = host_json(prediction);
  document["regime"] = name_of(prediction.regime);
  if (prediction.routing) document["routing"] = routing_json(inputs, prediction);
  return document;
}

Json comparison_json(const sim::Job& inputs, const std::vector<sim::Prediction>& predictions) {
  Json document{{"schema", "shardwright.prediction/1.0"}, {"predictions", Json::array()}};
  Json saved = Json::array();
  for (const sim::Prediction& prediction : predictions) {
    document["predictions"].push_back(prediction_json(inputs, prediction));
    saved.push_back(1 - predictions.front().time.iteration_s / prediction.time.iteration_s);
  }
  document["time_saved_by_first"] = std::move(saved);
  return document;
}

}  // namespace shardwright::cli
