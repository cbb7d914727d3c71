// SPDX-License-Identifier: Apache-2.0
#include "profiles/gpu_cost.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <type_traits>
#include <vector>

#include "profiles/cost_fields.h"
#include "profiles/data_file.h"
#include "profiles/gpu_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

constexpr std::string_view kSchema = "shardwright.gpu_cost/1.0";

Provenance read_provenance(const JsonReader& from) {
  Provenance p;
  p.source = from.require<std::string>("source");
  p.confidence = from.require_choice("confidence", {"fitted", "published", "analogue", "estimate"});
  p.analogue_of = from.optional<std::string>("analogue_of", "");
  p.command = from.optional<std::string>("command", "");
  p.date = from.require<std::string>("date");
  for (const auto& [key, errors] :
       {std::pair<std::string_view, ErrorSummary*>{"in_sample", &p.in_sample},
        {"held_out", &p.held_out}}) {
    if (from.has(key)) *errors = read_errors(from, key);
  }
  return p;
}

template <typename Params>
Sourced<Params> read_sourced(const JsonReader& from, std::string_view key) {
  const JsonReader object = from.require_object(key);
  Sourced<Params> result;
  const JsonReader values = object.require_object("values");
  if constexpr (std::is_same_v<Params, CollectiveParams>) {
    result.values.nvls = values.require<bool>("nvls");  // decides which others there are
  }
  FieldList fields;
  describe(fields, result.values);
  read_values(values, fields);
  object.reject_unknown_keys({"values", "source", "confidence", "analogue_of", "command", "date",
                              "in_sample", "held_out", "apart"});
  result.provenance = read_provenance(object);
  if (const auto apart = object.find_object("apart")) {
    for (const std::string& name : apart->keys()) {
      const JsonReader provenance = apart->require_object(name);
      if (!values.has(name)) apart->fail(name, "only keys of \"values\"");
      provenance.reject_unknown_keys(
          {"source", "confidence", "command", "date", "in_sample", "held_out"});
      result.apart[name] = read_provenance(provenance);
    }
  }
  return result;
}

/// A set that not every GPU has; without it the struct's own values, which are guesses.
template <typename Params>
void read_if_there(const JsonReader& from, std::string_view key, Sourced<Params>& set) {
  if (from.has(key)) {
    set = read_sourced<Params>(from, key);
  } else {
    set.provenance.source = "of the same size as on GPUs with measurements";
    set.provenance.confidence = "estimate";
  }
}

std::vector<std::string> ids_in(const GpuCosts& costs) {
  std::vector<std::string> ids;
  for (const auto& [id, cost] : costs.gpus) ids.push_back(id);
  return ids;
}

}  // namespace

ErrorSummary read_errors(const JsonReader& parent, std::string_view key) {
  const JsonReader from = parent.require_object(key);
  from.reject_unknown_keys({"n", "mape", "median", "p90"});
  return {from.require<std::int64_t>("n", at_least(std::int64_t{0})),
          from.require<double>("mape", at_least(0.0)),
          from.require<double>("median", at_least(0.0)),
          from.require<double>("p90", at_least(0.0))};
}

const GpuCost& GpuCosts::at(const std::string& id) const {
  if (const auto found = gpus.find(id); found != gpus.end()) return found->second;
  const std::vector<std::string> known = ids_in(*this);
  throw Error(fmt::format("no cost parameters for the GPU '{}'{}, expected one of {}", id,
                          did_you_mean(id, known), fmt::join(known, ", ")));
}

GpuCosts load_gpu_costs(const std::string& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kSchema});
  root.reject_unknown_keys({"schema", "nccl", "contention", "gpus"});
  GpuCosts costs;
  costs.nccl = read_sourced<NcclTable>(root, "nccl");
  costs.contention = read_sourced<ContentionParams>(root, "contention");
  const JsonReader gpus = root.require_object("gpus");
  for (const std::string& id : gpus.keys()) {
    if (id.starts_with('_')) continue;
    const JsonReader gpu = gpus.require_object(id);
    gpu.reject_unknown_keys({"rates", "gemm", "attention", "low_precision", "dispatch", "exchange",
                             "memory", "collectives"});
    GpuCost cost;
    cost.rates = read_sourced<GpuRates>(gpu, "rates");
    cost.gemm = read_sourced<GemmParams>(gpu, "gemm");
    const JsonReader kernels = gpu.require_object("attention");
    for (const std::string& kernel : kernels.keys())
      cost.attention[kernel] = read_sourced<AttentionParams>(kernels, kernel);
    read_if_there(gpu, "low_precision", cost.low_precision);
    read_if_there(gpu, "dispatch", cost.dispatch);
    read_if_there(gpu, "exchange", cost.exchange);
    cost.memory = read_sourced<MemoryParams>(gpu, "memory");
    cost.collectives = read_sourced<CollectiveParams>(gpu, "collectives");
    cost.collectives.values.nccl = costs.nccl.values;
    cost.contention = costs.contention;
    costs.gpus.emplace(id, std::move(cost));
  }
  return costs;
}

GpuCosts load_gpu_costs() {
  static KeptFiles<GpuCosts> kept(&load_gpu_costs);
  return *kept.get(data_dir() / "fitted" / "gpu_cost.json");
}

GpuCost cost_of(const GpuFile& gpu, const GpuCosts& costs) {
  if (!costs.gpus.contains(gpu.cost_as)) {
    throw Error(fmt::format(
        "gpu '{}' has no cost parameters of its own; its file needs a \"cost_as\" that names the "
        "most similar of those that have: {}",
        gpu.gpu.id, fmt::join(ids_in(costs), ", ")));
  }
  return costs.at(gpu.cost_as);
}

}  // namespace shardwright::profiles
