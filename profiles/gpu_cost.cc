// SPDX-License-Identifier: Apache-2.0
#include "profiles/gpu_cost.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <type_traits>
#include <vector>

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

namespace {

/// By the ending of a key, which names its unit.
std::string_view unit_of(std::string_view key) {
  if (key.ends_with("_bytes_per_s")) return "byte/s";
  if (key.ends_with("_flops")) return "flop/s";
  if (key == "bytes_per_s") return "byte/s";
  if (key == "simple_sqrt_s" || key == "sqrt_s") return "s/byte^0.5";
  return key.ends_with("_s") ? "s" : "";
}

/// Adds fields of one meaning, with the unit that each key names.
class Parameters {
 public:
  Parameters(FieldList& fields, std::string_view meaning) : fields_(fields), meaning_(meaning) {}

  template <typename T, typename R>
  Field& add(std::string_view key, T& value, NumberRange<R> range) const {
    return fields_.add(key, &value, unit_of(key), meaning_, NumberRange<double>(range));
  }
  Field& add(std::string_view key, bool& value) const {
    return fields_.add(key, &value, "", meaning_);
  }
  /// By protocol, or for two and for more nodes.
  template <std::size_t N>
  void array(std::string_view key, std::array<double, N>& values, NumberRange<double> range) const {
    static_assert(N == 2 || N == 3);
    static constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};
    static constexpr std::array<std::string_view, 3> kNodes = {"two_nodes", "more_nodes", ""};
    fields_.group(key, [&] {
      for (std::size_t i = 0; i < N; ++i) {
        fields_.add((N == 3 ? kProtocols : kNodes)[i], &values[i], unit_of(key), meaning_, range)
            .element = static_cast<int>(i);
      }
    });
  }

 private:
  FieldList& fields_;
  std::string_view meaning_;
};

constexpr std::string_view kOfCollectives = "NCCL on this GPU";

void add_hbm_efficiency(FieldList& fields, GpuRates& rates) {
  fields.add("hbm_efficiency", &rates.hbm_efficiency, "",
             "share of memory bandwidth that operands of a product reach", between(0.01, 1.0));
}

/// `base_rank` and `rate_rank` say how well the values show (Belief::rank); a `hop_spread` of 0
/// leaves hops alone.
void describe_protocol(FieldList& fields, std::string_view name, ProtocolParams& p, int base_rank,
                       int rate_rank, double hop_spread = 0.6) {
  const Parameters v(fields, kOfCollectives);
  fields.group(name, [&] {
    v.add("base_s", p.base_s, at_least(0.0)).believed(CostGroup::kCollectives, 0.5, base_rank);
    v.add("hop_s", p.hop_s, at_least(0.0)).believed(CostGroup::kCollectives, hop_spread, 4);
    v.add("bytes_per_s", p.bytes_per_s, above(0.0))
        .believed(CostGroup::kCollectives, 0.4, rate_rank);
  });
}

template <typename Params>
void describe_group(FieldList& fields, std::string_view name, Params& params) {
  fields.group(name, [&] { describe(fields, params); });
}

/// One sentence: the source, what fits it and how well.
Origin origin_of(const Provenance& provenance) {
  Origin origin{provenance.source, provenance.confidence, provenance.date};
  if (!provenance.command.empty()) origin.source += fmt::format("; {}", provenance.command);
  if (provenance.held_out.n > 0) {
    origin.source += fmt::format("; mean error {:.1f} % in sample, {:.1f} % held out",
                                 100 * provenance.in_sample.mape, 100 * provenance.held_out.mape);
  }
  return origin;
}

template <typename Params>
void add_origins(Origins& origins, std::string_view name, const Sourced<Params>& sourced) {
  Params values = sourced.values;
  FieldList fields;
  describe_group(fields, name, values);
  for (const Field& field : fields.fields()) {
    origins[field.path] = origin_of(sourced.provenance);
  }
  for (const auto& [key, provenance] : sourced.apart) {
    origins[fmt::format("{}.{}", name, key)] = origin_of(provenance);
  }
}

}  // namespace

void describe(FieldList& fields, GpuRates& p) {
  const Parameters v(fields, "data sheet");
  v.add("peak_flops", p.peak_flops, above(0.0));
  v.add("sm_count", p.sm_count, between(1, 100000));
  v.add("hbm_bytes_per_s", p.hbm_bytes_per_s, above(0.0));
  add_hbm_efficiency(fields, p);
  v.add("l2_bytes", p.l2_bytes, at_least(0.0));
}

void describe(FieldList& fields, GemmParams& p) {
  const Parameters v(fields, "tile and wave model of products");
  v.add("t0_s", p.t0_s, at_least(0.0)).believed(CostGroup::kProducts, 0.5, 1);
  v.add("e", p.e, between(0.01, 2.0)).believed(CostGroup::kProducts, 0.25);
  v.add("k0", p.k0, at_least(0.0)).believed(CostGroup::kProducts, 0.5, 1);
  v.add("w", p.w, between(0.0, 1.0)).believed(CostGroup::kProducts, 0.6, 2);
  v.add("s", p.s, between(0.0, 4.0)).believed(CostGroup::kProducts, 1.0, 3);
  v.add("split_k_s", p.split_k_s, at_least(0.0));
  v.add("throttle", p.throttle, between(0.0, 10.0));
  v.add("throttle_s", p.throttle_s, above(0.0));
  v.add("sustained_factor", p.sustained_factor, between(0.01, 1.2));
}

void describe(FieldList& fields, AttentionParams& p) {
  const Parameters v(fields, "fused attention kernel");
  v.add("t0_s", p.t0_s, at_least(0.0)).believed(CostGroup::kAttention, 0.5, 2);
  v.add("forward_flops", p.forward_flops, above(0.0)).believed(CostGroup::kAttention, 0.4);
  v.add("forward_s0", p.forward_s0, at_least(0.0)).believed(CostGroup::kAttention, 0.6, 1);
  v.add("backward_flops", p.backward_flops, above(0.0)).believed(CostGroup::kAttention, 0.4);
  v.add("backward_s0", p.backward_s0, at_least(0.0)).believed(CostGroup::kAttention, 0.6, 1);
  v.add("head64_factor", p.head64_factor, between(0.05, 2.0))
      .believed(CostGroup::kAttention, 0.15, 3);
  v.add("noncausal_factor", p.noncausal_factor, between(0.05, 4.0))
      .believed(CostGroup::kAttention, 0.1, 3);
}

void describe(FieldList& fields, MemoryParams& p) {
  const Parameters v(fields, "memory-bound kernels");
  v.add("t1_s", p.t1_s, at_least(0.0)).believed(CostGroup::kMemory, 0.6, 2);
  v.add("stream_efficiency", p.stream_efficiency, between(0.01, 1.0))
      .believed(CostGroup::kMemory, 0.3, 1);
  v.add("reduce_efficiency", p.reduce_efficiency, between(0.01, 1.0));
  v.add("l2_speedup", p.l2_speedup, between(1.0, 100.0)).believed(CostGroup::kMemory, 0.4, 3);
}

void describe(FieldList& fields, LowPrecisionParams& p) {
  const Parameters v(fields, "products in fewer bits");
  v.add("fp8_share", p.fp8_share, between(0.01, 2.0));
  v.add("nvfp4_share", p.nvfp4_share, between(0.01, 2.0));
}

void describe(FieldList& fields, DispatchParams& p) {
  const Parameters v(fields, "tokens to the ranks of their experts");
  v.add("t0_s", p.t0_s, at_least(0.0));
  v.add("token_s", p.token_s, at_least(0.0));
  v.add("sm_bytes_per_s", p.sm_bytes_per_s, above(0.0));
  v.add("link_bytes_per_s", p.link_bytes_per_s, above(0.0));
}

void describe(FieldList& fields, ExchangeParams& p) {
  const Parameters v(fields, "NCCL's all-to-all");
  v.add("base_s", p.base_s, at_least(0.0));
  v.add("sqrt_s", p.sqrt_s, at_least(0.0));
  v.add("bytes_per_s", p.bytes_per_s, above(0.0));
}

void describe(FieldList& fields, ContentionParams& p) {
  const Parameters v(fields, "kernels and collectives beside each other");
  v.add("kernels", p.kernels, between(0.1, 100.0)).believed(CostGroup::kContention, 0.3);
  v.add("nvlink_collectives", p.nvlink_collectives, between(1.0, 100.0))
      .believed(CostGroup::kContention, 0.2);
  v.add("other_collectives", p.other_collectives, between(1.0, 100.0))
      .believed(CostGroup::kContention, 0.2);
  v.add("least_bandwidth_share", p.least_bandwidth_share, NumberRange<double>(0, 1, true));
  v.add("scale_loss", p.scale_loss, between(0.0, 0.2));
}

void describe(FieldList& fields, NcclTable& p) {
  const Parameters v(fields, "NCCL's own cost table");
  const auto any = at_least(0.0);
  v.array("ring_base_s", p.ring_base_s, any);
  v.array("ring_nvlink_hop_s", p.ring_nvlink_hop_s, any);
  v.array("ring_pci_hop_s", p.ring_pci_hop_s, any);
  v.array("ring_net_hop_s", p.ring_net_hop_s, any);
  v.array("tree_base_s", p.tree_base_s, any);
  v.array("tree_nvlink_hop_s", p.tree_nvlink_hop_s, any);
  v.array("tree_pci_hop_s", p.tree_pci_hop_s, any);
  v.array("tree_net_hop_s", p.tree_net_hop_s, any);
  v.add("pat_base_s", p.pat_base_s, any);
  v.add("pat_rank_s", p.pat_rank_s, any);
  v.add("pat_net_divisor", p.pat_net_divisor, above(0.0));
  v.add("net_overhead_intel_s", p.net_overhead_intel_s, any);
  v.add("net_overhead_amd_s", p.net_overhead_amd_s, any);
  v.add("simple_overhead_factor", p.simple_overhead_factor, any);
  v.add("ll_share", p.ll_share, above(0.0));
  v.add("ll128_share", p.ll128_share, above(0.0));
  v.add("pat_share", p.pat_share, above(0.0));
  v.add("tree_share", p.tree_share, above(0.0));
  v.array("ll_cap_intel_bytes_per_s", p.ll_cap_intel_bytes_per_s, above(0.0));
  v.array("ll_cap_amd_bytes_per_s", p.ll_cap_amd_bytes_per_s, above(0.0));
  v.add("gather_traffic", p.gather_traffic, any);
  v.add("reduce_traffic", p.reduce_traffic, any);
  v.add("all_reduce_traffic", p.all_reduce_traffic, any);
}

void describe(FieldList& fields, CollectiveParams& p) {
  const Parameters v(fields, kOfCollectives);
  v.add("nvlink", p.nvlink);
  v.add("nvls", p.nvls);
  describe_protocol(fields, "ll", p.ll, 1, 1);
  v.add("ll_channel_bytes_per_s", p.ll_channel_bytes_per_s, above(0.0))
      .believed(CostGroup::kCollectives, 0.5, 3);
  v.add("ll_spread_s", p.ll_spread_s, at_least(0.0)).believed(CostGroup::kCollectives, 0.6, 3);
  describe_protocol(fields, "ll128", p.ll128, 2, 1);
  describe_protocol(fields, "simple", p.simple, 2, 0);
  v.add("simple_sqrt_s", p.simple_sqrt_s, at_least(0.0)).believed(CostGroup::kCollectives, 0.7, 2);
  v.add("gather_copy_bytes_per_s", p.gather_copy_bytes_per_s, above(0.0))
      .believed(CostGroup::kCollectives, 0.6, 3);
  v.add("reduce_copy_bytes_per_s", p.reduce_copy_bytes_per_s, above(0.0))
      .believed(CostGroup::kCollectives, 0.6, 3);
  if (p.nvls) {
    describe_protocol(fields, "nvls_simple", p.nvls_simple, 2, 1, 0);
    v.add("nominal_nvls_bytes_per_s", p.nominal_nvls_bytes_per_s, above(0.0));
  }
  v.add("nominal_bytes_per_s", p.nominal_bytes_per_s, above(0.0));
  v.add("nominal_ll_bytes_per_s", p.nominal_ll_bytes_per_s, above(0.0));
  v.add("nominal_ll128_bytes_per_s", p.nominal_ll128_bytes_per_s, above(0.0));
  v.add("nominal_ll128_net_bytes_per_s", p.nominal_ll128_net_bytes_per_s, above(0.0));
  v.add("channels_one_node", p.channels_one_node, between(1, 64));
  v.add("channels_multi_node", p.channels_multi_node, between(1, 64));
  v.add("channels_nvls", p.channels_nvls, between(1, 64));
  v.add("usual_net_bytes_per_s", p.usual_net_bytes_per_s, at_least(0.0));
}

void describe(FieldList& fields, GpuCost& cost) {
  fields.group("rates", [&] { add_hbm_efficiency(fields, cost.rates.values); });
  describe_group(fields, "gemm", cost.gemm.values);
  fields.group("attention", [&] {
    for (auto& [kernel, params] : cost.attention) describe_group(fields, kernel, params.values);
  });
  describe_group(fields, "low_precision", cost.low_precision.values);
  describe_group(fields, "dispatch", cost.dispatch.values);
  describe_group(fields, "exchange", cost.exchange.values);
  describe_group(fields, "memory", cost.memory.values);
  describe_group(fields, "contention", cost.contention.values);
  describe_group(fields, "collectives", cost.collectives.values);
  describe_group(fields, "collectives.nccl", cost.collectives.values.nccl);
}

Origins origins_of(const GpuCost& cost, const Sourced<NcclTable>& nccl) {
  Origins origins;
  origins["rates.hbm_efficiency"] = origin_of(cost.rates.provenance);
  add_origins(origins, "gemm", cost.gemm);
  for (const auto& [kernel, params] : cost.attention) {
    add_origins(origins, "attention." + kernel, params);
  }
  add_origins(origins, "low_precision", cost.low_precision);
  add_origins(origins, "dispatch", cost.dispatch);
  add_origins(origins, "exchange", cost.exchange);
  add_origins(origins, "memory", cost.memory);
  add_origins(origins, "contention", cost.contention);
  add_origins(origins, "collectives", cost.collectives);
  add_origins(origins, "collectives.nccl", nccl);
  return origins;
}

void follow_gpu(GpuCost& cost, const Gpu& gpu) {
  GpuRates& rates = cost.rates.values;
  rates.peak_flops = gpu.peak_bf16_flops;
  rates.sm_count = gpu.sm_count;
  rates.hbm_bytes_per_s = gpu.hbm_bytes_per_s;
  rates.l2_bytes = gpu.l2_bytes;
  rates.processor = gpu.is_processor();
}

}  // namespace shardwright::profiles
