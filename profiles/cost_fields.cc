#include "profiles/cost_fields.h"

#include <fmt/core.h>

#include <type_traits>

#include "profiles/gpu_params_visit.h"

namespace shardwright::profiles {
namespace {

/// By the ending of a key, which names its unit.
std::string_view unit_of(std::string_view key) {
  if (key.ends_with("_bytes_per_s")) return "byte/s";
  if (key.ends_with("_flops")) return "flop/s";
  if (key == "bytes_per_s") return "byte/s";
  if (key == "simple_sqrt_s") return "s/byte^0.5";
  return key.ends_with("_s") ? "s" : "";
}

class FieldAdder {
 public:
  FieldAdder(FieldList& fields, std::string_view meaning) : fields_(fields), meaning_(meaning) {}

  template <typename T, typename R>
  void operator()(std::string_view key, T& value, NumberRange<R> range) {
    fields_.add(key, &value, unit_of(key), meaning_, NumberRange<double>(range));
  }
  template <std::size_t N>
  void operator()(std::string_view key, std::array<double, N>& values, NumberRange<double> range) {
    static_assert(N == 2 || N == 3);
    static constexpr std::array<std::string_view, 3> kProtocols = {"ll", "ll128", "simple"};
    static constexpr std::array<std::string_view, 3> kNodes = {"two_nodes", "more_nodes", ""};
    fields_.group(key, [&] {
      for (std::size_t i = 0; i < N; ++i) {
        fields_.add((N == 3 ? kProtocols : kNodes)[i], &values[i], unit_of(key), meaning_, range);
      }
    });
  }
  void operator()(std::string_view key, bool& value) { fields_.add(key, &value, "", meaning_); }
  template <typename T>
  requires std::is_class_v<T>
  void operator()(std::string_view key, T& value) {
    fields_.group(key, [&] { visit(*this, value); });
  }

 private:
  FieldList& fields_;
  std::string_view meaning_;
};

template <typename Params>
void add(FieldList& fields, std::string_view name, std::string_view meaning, Params& params) {
  FieldAdder adder(fields, meaning);
  adder(name, params);
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
  add(fields, name, "", values);
  for (const Field& field : fields.fields()) {
    origins[field.path] = origin_of(sourced.provenance);
  }
  for (const auto& [key, provenance] : sourced.apart) {
    origins[fmt::format("{}.{}", name, key)] = origin_of(provenance);
  }
}

}  // namespace

void describe(FieldList& fields, GpuCost& cost) {
  fields.group("rates", [&] {
    fields.add("hbm_efficiency", &cost.rates.values.hbm_efficiency, "",
               "share of memory bandwidth that operands of a product reach", between(0.01, 1.0));
  });
  add(fields, "gemm", "tile and wave model of products", cost.gemm.values);
  fields.group("attention", [&] {
    for (auto& [kernel, params] : cost.attention) {
      add(fields, kernel, "fused attention kernel", params.values);
    }
  });
  add(fields, "memory", "memory-bound kernels", cost.memory.values);
  add(fields, "contention", "kernels and collectives beside each other", cost.contention.values);
  add(fields, "collectives", "NCCL on this GPU", cost.collectives.values);
  fields.group("collectives",
               [&] { add(fields, "nccl", "NCCL's own cost table", cost.collectives.values.nccl); });
}

Origins origins_of(const GpuCost& cost, const Sourced<NcclTable>& nccl) {
  Origins origins;
  origins["rates.hbm_efficiency"] = origin_of(cost.rates.provenance);
  add_origins(origins, "gemm", cost.gemm);
  for (const auto& [kernel, params] : cost.attention) {
    add_origins(origins, "attention." + kernel, params);
  }
  add_origins(origins, "memory", cost.memory);
  Sourced<ContentionParams> contention = cost.contention;
  contention.provenance = {
      "PyTorch FSDP studies report 5 to 15 % for rings over NVLink; nothing beyond the model "
      "elsewhere",
      "estimate",
      "",
      "",
      "2026-11-21",
      {},
      {}};
  add_origins(origins, "contention", contention);
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
