// SPDX-License-Identifier: Apache-2.0
#include "sim/engine/host_regime.h"

#include <algorithm>

#include "sim/core/base/words.h"

namespace shardwright::sim {

std::string_view name_of(HostRegime regime) {
  static constexpr auto kNames =
      words_up_to<HostRegime::kHost>("device-bound", "mixed", "host-bound");
  return name_in(kNames, regime);
}

HostRegime HostShare::regime() const {
  constexpr double kMixed = 0.05;
  if (issues_s > device_s) return HostRegime::kHost;
  return waited_s > kMixed * (device_s + waited_s) ? HostRegime::kMixed : HostRegime::kDevice;
}

double HostShare::crossing_tokens(double tokens) const {
  return device_s > 0 ? tokens * issues_s / device_s : 0;
}

namespace {

/// What `of` says of the operations of a section, once.
template <typename Of>
Nanoseconds sum_over(const Schedule& schedule, const Section& section, Of of) {
  Nanoseconds sum = 0;
  for (const Block& block : schedule.blocks_of(section)) {
    Nanoseconds once = 0;
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) once += of(i);
    sum += once * block.repeats;
  }
  return sum;
}

}  // namespace

std::string_view name_of(StepRegime regime) {
  static constexpr auto kNames =
      words_up_to<StepRegime::kMemory>("compute", "communication", "host", "memory");
  return name_in(kNames, regime);
}

StepRegime step_regime(const HostShare& host, const KernelTimes& kernels, double exposed_s) {
  if (host.regime() == HostRegime::kHost) return StepRegime::kHost;
  const double multiply_s = static_cast<double>(kernels.gemm_ns + kernels.attention_ns) * 1e-9;
  const double move_s = static_cast<double>(kernels.memory_ns) * 1e-9;
  if (exposed_s > std::max(multiply_s, move_s)) return StepRegime::kCommunication;
  return move_s > multiply_s ? StepRegime::kMemory : StepRegime::kCompute;
}

void KernelTimes::add(const KernelTimes& other, std::int64_t times) {
  gemm_ns += times * other.gemm_ns;
  attention_ns += times * other.attention_ns;
  memory_ns += times * other.memory_ns;
}

KernelTimes kernel_times(const Schedule& schedule, const std::vector<OpCost>& costs,
                         const Section& section) {
  const auto of_kind = [&](WorkKind kind) {
    return sum_over(schedule, section, [&](std::uint32_t i) {
      return schedule.ops[i].work.kind == kind ? costs[i].alone_ns : Nanoseconds{0};
    });
  };
  return {of_kind(WorkKind::kGemm), of_kind(WorkKind::kAttention), of_kind(WorkKind::kMemory)};
}

Nanoseconds issued_ns(const Schedule& schedule, const std::vector<OpCost>& costs,
                      const Section& section) {
  return sum_over(schedule, section, [&](std::uint32_t i) {
    return schedule.ops[i].host_waits ? Nanoseconds{0} : costs[i].host_ns;
  });
}

}  // namespace shardwright::sim
