// SPDX-License-Identifier: Apache-2.0
// The instruction set that the host kernels use, chosen when the program runs.
//
// kernels/host/simd is compiled once for each Isa, and a table of functions is picked by what the
// processor has, so one binary runs on any x86-64. Given the same inputs kAvx2 and kAvx512 give the
// same bits except in GEMMs, whose order of summation is the library's; kBaseline has no
// fused multiply-add and differs in the last bits. Ranks that must agree bit for bit name one Isa.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

namespace shardwright::kernels::host {

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// "baseline", "avx2", "avx512".
std::string_view name_of(Isa isa);
std::optional<Isa> isa_from(std::string_view name);

/// True when this processor and this build have it. kBaseline is always there.
bool supported(Isa isa);
/// The supported ones, slowest first.
std::vector<Isa> supported_isas();
/// The fastest supported one, or the one that the environment names in SHARDWRIGHT_ISA.
Isa best_isa();

}  // namespace shardwright::kernels::host
