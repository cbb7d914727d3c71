// SPDX-License-Identifier: Apache-2.0
#include "sim/explain/host_regime.h"

namespace shardwright::sim {

std::string_view name_of(HostRegime regime) {
  switch (regime) {
    case HostRegime::kDevice:
      return "device-bound";
    case HostRegime::kMixed:
      return "mixed";
    case HostRegime::kHost:
      break;
  }
  return "host-bound";
}

HostRegime HostShare::regime() const {
  constexpr double kMixed = 0.05;
  if (issues_s > device_s) return HostRegime::kHost;
  return waited_s > kMixed * (device_s + waited_s) ? HostRegime::kMixed : HostRegime::kDevice;
}

double HostShare::crossing_tokens(double tokens) const {
  return device_s > 0 ? tokens * issues_s / device_s : 0;
}

Nanoseconds issued_ns(const Schedule& schedule, const std::vector<OpCost>& costs,
                      const Section& section) {
  Nanoseconds sum = 0;
  for (std::uint32_t b = 0; b < section.block_count; ++b) {
    const Block& block = schedule.blocks[section.first_block + b];
    Nanoseconds once = 0;
    for (std::uint32_t i = 0; i < block.op_count; ++i) {
      const Op& op = schedule.ops[block.first_op + i];
      if (!op.host_waits) once += costs[block.first_op + i].host_ns;
    }
    sum += once * block.repeats;
  }
  return sum;
}

}  // namespace shardwright::sim
