#include "profiles/gpu_cost.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <type_traits>
#include <vector>

#include "profiles/data_dir.h"
#include "sim/core/atomic_file.h"
#include "sim/core/error.h"
#include "sim/core/json_file.h"
#include "sim/core/nearest.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kSchema = "shardwright.gpu_cost/1.0";

// Each parameter struct lists its keys once; the reader and the writer are both visitors of it.

template <typename Visitor>
void visit(Visitor& v, GpuRates& p) {
  v("peak_flops", p.peak_flops, above(0.0));
  v("sm_count", p.sm_count, between(1, 100000));
  v("hbm_bytes_per_s", p.hbm_bytes_per_s, above(0.0));
  v("hbm_efficiency", p.hbm_efficiency, between(0.01, 1.0));
  v("l2_bytes", p.l2_bytes, at_least(0.0));
}

template <typename Visitor>
void visit(Visitor& v, GemmParams& p) {
  v("t0_s", p.t0_s, at_least(0.0));
  v("e", p.e, between(0.01, 2.0));
  v("k0", p.k0, at_least(0.0));
  v("w", p.w, between(0.0, 1.0));
  v("s", p.s, between(0.0, 4.0));
  v("split_k_s", p.split_k_s, at_least(0.0));
  v("throttle", p.throttle, between(0.0, 10.0));
  v("throttle_s", p.throttle_s, above(0.0));
  v("sustained_factor", p.sustained_factor, between(0.01, 1.0));
}

template <typename Visitor>
void visit(Visitor& v, AttentionParams& p) {
  v("t0_s", p.t0_s, at_least(0.0));
  v("forward_flops", p.forward_flops, above(0.0));
  v("forward_s0", p.forward_s0, at_least(0.0));
  v("backward_flops", p.backward_flops, above(0.0));
  v("backward_s0", p.backward_s0, at_least(0.0));
  v("head64_factor", p.head64_factor, between(0.05, 2.0));
  v("noncausal_factor", p.noncausal_factor, between(0.05, 4.0));
}

template <typename Visitor>
void visit(Visitor& v, MemoryParams& p) {
  v("t1_s", p.t1_s, at_least(0.0));
  v("stream_efficiency", p.stream_efficiency, between(0.01, 1.0));
  v("reduce_efficiency", p.reduce_efficiency, between(0.01, 1.0));
  v("l2_speedup", p.l2_speedup, between(1.0, 100.0));
}

template <typename Visitor>
void visit(Visitor& v, ProtocolParams& p) {
  v("base_s", p.base_s, at_least(0.0));
  v("hop_s", p.hop_s, at_least(0.0));
  v("bytes_per_s", p.bytes_per_s, above(0.0));
}

template <typename Visitor>
void visit(Visitor& v, NcclTable& p) {
  const auto any = at_least(0.0);
  v("ring_base_s", p.ring_base_s, any);
  v("ring_nvlink_hop_s", p.ring_nvlink_hop_s, any);
  v("ring_pci_hop_s", p.ring_pci_hop_s, any);
  v("ring_net_hop_s", p.ring_net_hop_s, any);
  v("tree_base_s", p.tree_base_s, any);
  v("tree_nvlink_hop_s", p.tree_nvlink_hop_s, any);
  v("tree_pci_hop_s", p.tree_pci_hop_s, any);
  v("tree_net_hop_s", p.tree_net_hop_s, any);
  v("pat_base_s", p.pat_base_s, any);
  v("pat_rank_s", p.pat_rank_s, any);
  v("pat_net_divisor", p.pat_net_divisor, above(0.0));
  v("net_overhead_intel_s", p.net_overhead_intel_s, any);
  v("net_overhead_amd_s", p.net_overhead_amd_s, any);
  v("simple_overhead_factor", p.simple_overhead_factor, any);
  v("ll_share", p.ll_share, above(0.0));
  v("ll128_share", p.ll128_share, above(0.0));
  v("pat_share", p.pat_share, above(0.0));
  v("tree_share", p.tree_share, above(0.0));
  v("ll_cap_intel_bytes_per_s", p.ll_cap_intel_bytes_per_s, above(0.0));
  v("ll_cap_amd_bytes_per_s", p.ll_cap_amd_bytes_per_s, above(0.0));
}

template <typename Visitor>
void visit(Visitor& v, CollectiveParams& p) {
  v("nvlink", p.nvlink);
  v("nvls", p.nvls);
  v("ll", p.ll);
  v("ll_channel_bytes_per_s", p.ll_channel_bytes_per_s, above(0.0));
  v("ll_spread_s", p.ll_spread_s, at_least(0.0));
  v("ll128", p.ll128);
  v("simple", p.simple);
  v("simple_sqrt_s", p.simple_sqrt_s, at_least(0.0));
  v("gather_copy_bytes_per_s", p.gather_copy_bytes_per_s, above(0.0));
  v("reduce_copy_bytes_per_s", p.reduce_copy_bytes_per_s, above(0.0));
  if (p.nvls) {
    v("nvls_simple", p.nvls_simple);
    v("nominal_nvls_bytes_per_s", p.nominal_nvls_bytes_per_s, above(0.0));
  }
  v("nominal_bytes_per_s", p.nominal_bytes_per_s, above(0.0));
  v("nominal_ll_bytes_per_s", p.nominal_ll_bytes_per_s, above(0.0));
  v("nominal_ll128_bytes_per_s", p.nominal_ll128_bytes_per_s, above(0.0));
  v("nominal_ll128_net_bytes_per_s", p.nominal_ll128_net_bytes_per_s, above(0.0));
  v("channels_one_node", p.channels_one_node, between(1, 64));
  v("channels_multi_node", p.channels_multi_node, between(1, 64));
  v("channels_nvls", p.channels_nvls, between(1, 64));
  v("usual_net_bytes_per_s", p.usual_net_bytes_per_s, at_least(0.0));
}

template <typename Visitor>
void visit(Visitor& v, ErrorSummary& p) {
  v("n", p.n, at_least(std::int64_t{0}));
  v("mape", p.mape, at_least(0.0));
  v("median", p.median, at_least(0.0));
  v("p90", p.p90, at_least(0.0));
}

class Reader {
 public:
  explicit Reader(const JsonReader& from) : from_(from) {}

  template <typename T, typename R>
  void operator()(std::string_view key, T& value, NumberRange<R> range) {
    keys_.emplace_back(key);
    value = from_.require<T>(key, NumberRange<T>(range));
  }
  template <std::size_t N>
  void operator()(std::string_view key, std::array<double, N>& values, NumberRange<double> range) {
    keys_.emplace_back(key);
    const auto elements = from_.require_array(key);
    if (elements.size() != N) from_.fail(key, fmt::format("an array of {} numbers", N));
    for (std::size_t i = 0; i < N; ++i) values[i] = elements[i].value<double>(range);
  }
  void operator()(std::string_view key, bool& value) {
    keys_.emplace_back(key);
    value = from_.require<bool>(key);
  }
  template <typename T>
  requires std::is_class_v<T>
  void operator()(std::string_view key, T& value) {
    keys_.emplace_back(key);
    const JsonReader object = from_.require_object(key);
    Reader reader(object);
    visit(reader, value);
    reader.reject_unknown_keys();
  }
  void also(std::string_view key) { keys_.emplace_back(key); }
  void reject_unknown_keys() const {
    for (const std::string& key : from_.keys()) {
      bool known = key.starts_with('_');
      for (const std::string& k : keys_) known = known || k == key;
      if (!known) from_.fail(key, fmt::format("only the keys {}", fmt::join(keys_, ", ")));
    }
  }

 private:
  const JsonReader& from_;
  std::vector<std::string> keys_;
};

class Writer {
 public:
  template <typename T, typename R>
  void operator()(std::string_view key, const T& value, NumberRange<R>) {
    json[std::string(key)] = value;
  }
  void operator()(std::string_view key, bool& value) { json[std::string(key)] = value; }
  template <typename T>
  requires std::is_class_v<T>
  void operator()(std::string_view key, T& value) {
    Writer inner;
    visit(inner, value);
    json[std::string(key)] = std::move(inner.json);
  }

  ordered_json json = ordered_json::object();
};

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
    if (const auto object = from.find_object(key)) {
      Reader reader(*object);
      visit(reader, *errors);
      reader.reject_unknown_keys();
    }
  }
  return p;
}

template <typename Params>
Sourced<Params> read_sourced(const JsonReader& from, std::string_view key) {
  const JsonReader object = from.require_object(key);
  Sourced<Params> result;
  const JsonReader values = object.require_object("values");
  Reader reader(values);
  visit(reader, result.values);
  reader.reject_unknown_keys();
  object.reject_unknown_keys({"values", "source", "confidence", "analogue_of", "command", "date",
                              "in_sample", "held_out"});
  result.provenance = read_provenance(object);
  return result;
}

template <typename Params>
ordered_json write_sourced(Sourced<Params> from) {
  ordered_json json = ordered_json::object();
  Writer writer;
  visit(writer, from.values);
  json["values"] = std::move(writer.json);
  Provenance& p = from.provenance;
  json["source"] = p.source;
  json["confidence"] = p.confidence;
  if (!p.analogue_of.empty()) json["analogue_of"] = p.analogue_of;
  if (!p.command.empty()) json["command"] = p.command;
  json["date"] = p.date;
  for (const auto& [key, errors] :
       {std::pair<const char*, ErrorSummary*>{"in_sample", &p.in_sample},
        {"held_out", &p.held_out}}) {
    if (errors->n == 0) continue;
    Writer inner;
    visit(inner, *errors);
    json[key] = std::move(inner.json);
  }
  return json;
}

}  // namespace

const GpuCost& GpuCosts::at(const std::string& id) const {
  if (const auto found = gpus.find(id); found != gpus.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [name, cost] : gpus) known.push_back(name);
  throw Error(fmt::format("no cost parameters for the GPU '{}'{}, expected one of {}", id,
                          did_you_mean(id, known), fmt::join(known, ", ")));
}

GpuCosts load_gpu_costs(const std::filesystem::path& file) {
  const JsonFile document = JsonFile::load(file);
  const JsonReader root = document.root();
  root.require_choice("schema", {kSchema});
  root.reject_unknown_keys({"schema", "nccl", "gpus"});
  GpuCosts costs;
  costs.nccl = read_sourced<NcclTable>(root, "nccl");
  const JsonReader gpus = root.require_object("gpus");
  for (const std::string& id : gpus.keys()) {
    if (id.starts_with('_')) continue;
    const JsonReader gpu = gpus.require_object(id);
    gpu.reject_unknown_keys({"rates", "gemm", "attention", "memory", "collectives"});
    GpuCost cost;
    cost.rates = read_sourced<GpuRates>(gpu, "rates");
    cost.gemm = read_sourced<GemmParams>(gpu, "gemm");
    const JsonReader kernels = gpu.require_object("attention");
    for (const std::string& kernel : kernels.keys())
      cost.attention[kernel] = read_sourced<AttentionParams>(kernels, kernel);
    cost.memory = read_sourced<MemoryParams>(gpu, "memory");
    cost.collectives = read_sourced<CollectiveParams>(gpu, "collectives");
    cost.collectives.values.nccl = costs.nccl.values;
    costs.gpus.emplace(id, std::move(cost));
  }
  return costs;
}

GpuCosts load_gpu_costs() {
  return load_gpu_costs(data_dir() / "fitted" / "gpu_cost.json");
}

void save_gpu_costs(const GpuCosts& costs, const std::filesystem::path& file) {
  ordered_json json = ordered_json::object();
  json["schema"] = kSchema;
  json["nccl"] = write_sourced(costs.nccl);
  json["gpus"] = ordered_json::object();
  for (const auto& [id, cost] : costs.gpus) {
    ordered_json gpu = ordered_json::object();
    gpu["rates"] = write_sourced(cost.rates);
    gpu["gemm"] = write_sourced(cost.gemm);
    gpu["attention"] = ordered_json::object();
    for (const auto& [kernel, params] : cost.attention)
      gpu["attention"][kernel] = write_sourced(params);
    gpu["memory"] = write_sourced(cost.memory);
    gpu["collectives"] = write_sourced(cost.collectives);
    json["gpus"][id] = std::move(gpu);
  }
  write_file_atomically(file, json.dump(1) + "\n");
}

}  // namespace shardwright::profiles
