// SPDX-License-Identifier: Apache-2.0
#include "profiles/calibration.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, kCostGroups> kGroupNames = {
    "products", "attention", "memory", "collectives", "host", "contention"};
constexpr std::array<std::string_view, 6> kWorkNames = {"none",   "gemm",       "attention",
                                                        "memory", "collective", "host"};
constexpr std::array<std::string_view, 6> kClassNames = {"stream", "cast",  "concatenate",
                                                         "copy",   "scale", "add"};
constexpr std::array<std::string_view, 3> kLayoutNames = {"nt", "nn", "tn"};
constexpr double kLongest = 1e6;  // seconds
const auto kCount = at_least(std::int64_t{0});

/// The place of `word` among `names`, or the reader's error.
template <typename Names>
std::size_t place_of(const JsonReader& from, std::string_view key, const Names& names) {
  const std::string word = from.require<std::string>(key);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word == names[i]) return i;
  }
  from.fail(key, "a name that this version writes");
}

template <typename Enum>
Enum require_enum(const JsonReader& from, std::string_view key, Enum last) {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i <= static_cast<std::size_t>(last); ++i) {
    names.push_back(name_of(static_cast<Enum>(i)));
  }
  return static_cast<Enum>(place_of(from, key, names));
}

/// Six digits tell a calibrated time or error.
double rounded(double value) {
  return shardwright::rounded(value, 6);
}

ordered_json write_errors(const ErrorSummary& errors) {
  return {{"n", errors.n},
          {"mape", rounded(errors.mape)},
          {"median", rounded(errors.median)},
          {"p90", rounded(errors.p90)}};
}

ObservationSource read_source(const JsonReader& from) {
  from.reject_unknown_keys({"file", "format", "gpu", "sm_count", "memory_bytes", "world_size",
                            "rank", "software", "date", "truncated"});
  ObservationSource source;
  source.file = from.require<std::string>("file");
  source.format = from.require<std::string>("format");
  source.gpu = from.optional<std::string>("gpu", "");
  source.sm_count = from.optional<std::int64_t>("sm_count", 0, kCount);
  source.memory_bytes = from.optional<std::int64_t>("memory_bytes", 0, kCount);
  source.world_size = from.optional<std::int64_t>("world_size", 0, kCount);
  source.rank = from.optional<int>("rank", 0);
  source.software = from.optional<std::string>("software", "");
  source.date = from.optional<std::string>("date", "");
  source.truncated = from.optional<bool>("truncated", false);
  return source;
}

ordered_json write_source(const ObservationSource& source) {
  ordered_json json{{"file", source.file}, {"format", source.format}};
  if (!source.gpu.empty()) json["gpu"] = source.gpu;
  if (source.sm_count > 0) json["sm_count"] = source.sm_count;
  if (source.memory_bytes > 0) json["memory_bytes"] = source.memory_bytes;
  if (source.world_size > 0) json["world_size"] = source.world_size;
  if (source.rank != 0) json["rank"] = source.rank;
  if (!source.software.empty()) json["software"] = source.software;
  if (!source.date.empty()) json["date"] = source.date;
  if (source.truncated) json["truncated"] = true;
  return json;
}

CalibratedGroup read_group(const JsonReader& from) {
  from.reject_unknown_keys({"group", "rows", "observations", "before", "in_sample", "held_out",
                            "log_error_quantiles", "half_width"});
  CalibratedGroup group;
  group.group = require_enum(from, "group", CostGroup::kContention);
  group.rows = from.require<std::int64_t>("rows", kCount);
  group.observations = from.require<std::int64_t>("observations", kCount);
  group.before = read_errors(from, "before");
  group.in_sample = read_errors(from, "in_sample");
  group.held_out = read_errors(from, "held_out");
  const std::vector<double> quantiles = from.require_list<double>("log_error_quantiles");
  if (quantiles.size() != group.quantiles.size()) {
    from.fail("log_error_quantiles", "five numbers: the 5, 25, 50, 75 and 95 % quantiles");
  }
  std::copy(quantiles.begin(), quantiles.end(), group.quantiles.begin());
  group.half_width = from.require<double>("half_width", between(0.0, kWidestCalibration));
  return group;
}

ordered_json write_group(const CalibratedGroup& group) {
  ordered_json json{{"group", name_of(group.group)},
                    {"rows", group.rows},
                    {"observations", group.observations},
                    {"before", write_errors(group.before)},
                    {"in_sample", write_errors(group.in_sample)},
                    {"held_out", write_errors(group.held_out)},
                    {"log_error_quantiles", ordered_json::array()}};
  for (const double quantile : group.quantiles) {
    json["log_error_quantiles"].push_back(rounded(quantile));
  }
  json["half_width"] = rounded(group.half_width);
  return json;
}

CalibratedValue read_value(const JsonReader& from) {
  from.reject_unknown_keys({"path", "before", "after", "interval", "rows"});
  CalibratedValue value;
  value.path = from.require<std::string>("path");
  value.before = from.require<double>("before");
  value.after = from.require<double>("after");
  const std::vector<double> interval = from.require_list<double>("interval");
  if (interval.size() != 2 || !(interval[0] <= interval[1])) {
    from.fail("interval", "two rising numbers");
  }
  value.low = interval[0];
  value.high = interval[1];
  value.rows = from.require<std::int64_t>("rows", kCount);
  return value;
}

void read_work(const JsonReader& from, Work& work) {
  work.kind = static_cast<WorkKind>(place_of(from, "work", kWorkNames));
  work.dtype_bytes = static_cast<std::uint8_t>(from.optional<int>("dtype_bytes", 2, between(1, 8)));
  work.kernels = static_cast<std::uint16_t>(from.optional<int>("kernels", 1, between(0, 65535)));
  work.efficiency = from.optional<double>("efficiency", 1.0, NumberRange<double>(0, 1e3, true));
  const auto size = [&](std::string_view key) {
    return from.optional<std::int64_t>(key, 0, between(std::int64_t{0}, std::int64_t{1} << 50));
  };
  work.m = size("m");
  work.n = size("n");
  work.k = size("k");
  work.bytes = size("bytes");
  work.backward = from.optional<bool>("backward", false);
  work.causal = from.optional<bool>("causal", true);
  if (from.has("class")) {
    work.memory_class = static_cast<MemoryClass>(place_of(from, "class", kClassNames));
  }
}

MeasuredRow read_row(const JsonReader& from) {
  from.reject_unknown_keys({"op",    "phase",   "work",  "dtype_bytes", "kernels",  "efficiency",
                            "m",     "n",       "k",     "bytes",       "backward", "causal",
                            "class", "ranks",   "nodes", "contended",   "seconds",  "spread",
                            "count", "lowered", "batch", "sharers"});
  MeasuredRow row;
  Observation& operation = row.operation;
  operation.op = require_enum(from, "op", OpKind::kSynchronize);
  operation.phase = require_enum(from, "phase", Phase::kOptimizer);
  read_work(from, operation.work);
  operation.work.layout = layout_of(operation.op);
  const auto ranks = between(std::int64_t{1}, std::int64_t{1} << 24);
  operation.ranks = from.optional<std::int64_t>("ranks", 1, ranks);
  operation.nodes = from.optional<std::int64_t>("nodes", 1, ranks);
  operation.batch = from.optional<std::int64_t>("batch", 1, ranks);
  operation.sharers = from.optional<int>("sharers", 1, between(1, 1 << 20));
  operation.contended = from.optional<double>("contended", 0.0, between(0.0, 1.0));
  operation.seconds = from.require<double>("seconds", between(0.0, kLongest));
  row.spread = from.optional<double>("spread", 0.0, between(0.0, kWidestCalibration));
  row.count = from.require<std::int64_t>("count", at_least(std::int64_t{1}));
  row.lowered = from.optional<bool>("lowered", false);
  return row;
}

ordered_json write_row(const MeasuredRow& row) {
  const Observation& operation = row.operation;
  const Work& work = operation.work;
  ordered_json json{{"op", name_of(operation.op)},
                    {"phase", name_of(operation.phase)},
                    {"work", kWorkNames[static_cast<std::size_t>(work.kind)]}};
  const auto add = [&](const char* key, auto value, auto usual) {
    if (value != usual) json[key] = value;
  };
  add("dtype_bytes", int{work.dtype_bytes}, 2);
  add("kernels", int{work.kernels}, 1);
  add("efficiency", work.efficiency, 1.0);
  add("m", work.m, std::int64_t{0});
  add("n", work.n, std::int64_t{0});
  add("k", work.k, std::int64_t{0});
  add("bytes", work.bytes, std::int64_t{0});
  add("backward", work.backward, false);
  add("causal", work.causal, true);
  if (work.memory_class != MemoryClass::kStream) {
    json["class"] = kClassNames[static_cast<std::size_t>(work.memory_class)];
  }
  add("ranks", operation.ranks, std::int64_t{1});
  add("nodes", operation.nodes, std::int64_t{1});
  add("batch", operation.batch, std::int64_t{1});
  add("sharers", operation.sharers, std::int32_t{1});
  add("contended", rounded(operation.contended), 0.0);
  json["seconds"] = rounded(operation.seconds);
  add("spread", rounded(row.spread), 0.0);
  json["count"] = row.count;
  add("lowered", row.lowered, false);
  return json;
}

AnchorStep read_anchor(const JsonReader& from) {
  from.reject_unknown_keys({"model", "gpus", "plan", "step_s", "predicted_s", "carried", "steps"});
  const NumberRange<double> seconds(0, kLongest, true);
  AnchorStep anchor;
  anchor.model = from.require<std::string>("model");
  anchor.gpus = from.require<std::int64_t>("gpus", at_least(std::int64_t{1}));
  anchor.plan = from.optional<std::string>("plan", "");
  anchor.step_s = from.require<double>("step_s", seconds);
  anchor.predicted_s = from.require<double>("predicted_s", seconds);
  anchor.carried = from.require<double>("carried", between(0.0, 1.0));
  anchor.steps = from.optional<std::int64_t>("steps", 1, at_least(std::int64_t{1}));
  return anchor;
}

ordered_json write_anchor(const AnchorStep& anchor) {
  return {{"model", anchor.model},
          {"gpus", anchor.gpus},
          {"plan", anchor.plan},
          {"step_s", rounded(anchor.step_s)},
          {"predicted_s", rounded(anchor.predicted_s)},
          {"carried", rounded(anchor.carried)},
          {"steps", anchor.steps}};
}

}  // namespace

std::string_view name_of(CostGroup group) {
  return kGroupNames[static_cast<std::size_t>(group)];
}

const CalibratedGroup* Calibration::find(CostGroup group) const {
  for (const CalibratedGroup& known : groups) {
    if (known.group == group) return &known;
  }
  return nullptr;
}

Calibration read_calibration(const JsonReader& from) {
  from.reject_unknown_keys(
      {"date", "parent", "stack", "level", "sources", "groups", "values", "rows", "anchors"});
  Calibration result;
  result.date = from.optional<std::string>("date", "");
  result.parent = from.optional<std::string>("parent", "");
  result.stack = from.optional<std::string>("stack", "");
  result.level = from.optional<double>("level", 0.9, between(0.5, 0.999));
  for (const JsonReader& source : from.require_array("sources")) {
    result.sources.push_back(read_source(source));
  }
  for (const JsonReader& group : from.require_array("groups")) {
    result.groups.push_back(read_group(group));
  }
  for (const JsonReader& value : from.require_array("values")) {
    result.values.push_back(read_value(value));
  }
  for (const JsonReader& row : from.require_array("rows")) result.rows.push_back(read_row(row));
  if (const auto anchors = from.find_array("anchors")) {
    for (const JsonReader& anchor : *anchors) result.anchors.push_back(read_anchor(anchor));
  }
  return result;
}

std::vector<MeasuredProduct> read_measured_products(const std::vector<JsonReader>& from) {
  std::vector<MeasuredProduct> products;
  const auto size = between(std::int64_t{1}, std::int64_t{1} << 40);
  for (const JsonReader& product : from) {
    product.reject_unknown_keys(
        {"m", "n", "k", "layout", "dtype_bytes", "sharers", "seconds", "count"});
    std::optional<ProductLayout> layout;
    if (product.has("layout")) {
      layout = static_cast<ProductLayout>(place_of(product, "layout", kLayoutNames));
    }
    products.push_back({product.require<std::int64_t>("m", size),
                        product.require<std::int64_t>("n", size),
                        product.require<std::int64_t>("k", size),
                        product.optional<int>("dtype_bytes", 2, between(1, 8)),
                        product.optional<int>("sharers", 1, between(1, 1 << 20)),
                        product.require<double>("seconds", NumberRange<double>(0, kLongest, true)),
                        product.optional<std::int64_t>("count", 1, kCount), layout});
  }
  return products;
}

std::string to_json(const Calibration& calibration) {
  ordered_json json{{"date", calibration.date},         {"parent", calibration.parent},
                    {"stack", calibration.stack},       {"level", calibration.level},
                    {"sources", ordered_json::array()}, {"groups", ordered_json::array()},
                    {"values", ordered_json::array()},  {"rows", ordered_json::array()}};
  for (const auto& source : calibration.sources) json["sources"].push_back(write_source(source));
  for (const auto& group : calibration.groups) json["groups"].push_back(write_group(group));
  for (const CalibratedValue& value : calibration.values) {
    json["values"].push_back({{"path", value.path},
                              {"before", value.before},
                              {"after", value.after},
                              {"interval", {rounded(value.low), rounded(value.high)}},
                              {"rows", value.rows}});
  }
  for (const MeasuredRow& row : calibration.rows) json["rows"].push_back(write_row(row));
  for (const AnchorStep& anchor : calibration.anchors)
    json["anchors"].push_back(write_anchor(anchor));
  return json.dump();
}

std::string to_json(const std::vector<MeasuredProduct>& products) {
  ordered_json json = ordered_json::array();
  for (const MeasuredProduct& product : products) {
    json.push_back({{"m", product.m},
                    {"n", product.n},
                    {"k", product.k},
                    {"dtype_bytes", product.dtype_bytes},
                    {"sharers", product.sharers},
                    {"seconds", rounded(product.seconds)},
                    {"count", product.count}});
    if (product.layout)
      json.back()["layout"] = kLayoutNames[static_cast<std::size_t>(*product.layout)];
  }
  return json.dump();
}

}  // namespace shardwright::profiles
