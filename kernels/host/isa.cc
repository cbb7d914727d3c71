// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/isa.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cstdlib>

#include "sim/core/base/error.h"

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
  const std::vector<Isa> isas = supported_isas();
  const char* name = std::getenv("SHARDWRIGHT_ISA");
  if (name == nullptr || *name == '\0') return isas.back();
  std::vector<std::string_view> names;
  for (const Isa isa : isas) {
    if (name_of(isa) == name) return isa;
    names.push_back(name_of(isa));
  }
  throw Error(fmt::format("SHARDWRIGHT_ISA is '{}', expected what this processor has: {}", name,
                          fmt::join(names, ", ")));
}

}  // namespace shardwright::kernels::host
