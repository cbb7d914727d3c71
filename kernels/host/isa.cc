// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/isa.h"

namespace shardwright::kernels::host {

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return "baseline";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<Isa> isa_from(std::string_view name) {
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (name == name_of(isa)) return isa;
  }
  return std::nullopt;
}

bool supported(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return true;
#if defined(__x86_64__)
    // What -march=x86-64-v3 and -v4 let the compiler use.
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    case Isa::kAvx512:
      return supported(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    default:
      return false;
#endif
  }
  return false;
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
    if (supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa best_isa() {
  return supported_isas().back();
}

}  // namespace shardwright::kernels::host
