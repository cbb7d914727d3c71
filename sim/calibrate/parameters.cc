#include "sim/calibrate/parameters.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

namespace shardwright::sim {
namespace {

using profiles::CostGroup;

/// A path without the kernel of attention ("{}"), its spread and its rank.
struct Known {
  const char* path;
  double spread;
  int rank;
  bool relative = false;
};

// Spreads: what the same value differs by between GPUs of one generation and their stacks (gpu_cost
// of profiles/data/fitted); higher ranks are values that show in few shapes only.
constexpr Known kProductValues[] = {
    {"cost.gemm.e", 0.25, 0}, {"cost.gemm.k0", 0.5, 1}, {"cost.gemm.t0_s", 0.5, 1},
    {"cost.gemm.w", 0.6, 2},  {"cost.gemm.s", 1.0, 3},  {"gpu.peak_fp32_flops", 0.4, 4, true}};
constexpr Known kAttentionValues[] = {{"cost.attention.{}.forward_flops", 0.4, 0},
                                      {"cost.attention.{}.backward_flops", 0.4, 0},
                                      {"cost.attention.{}.forward_s0", 0.6, 1},
                                      {"cost.attention.{}.backward_s0", 0.6, 1},
                                      {"cost.attention.{}.t0_s", 0.5, 2},
                                      {"cost.attention.{}.head64_factor", 0.15, 3},
                                      {"cost.attention.{}.noncausal_factor", 0.1, 3}};
constexpr Known kMemoryValues[] = {{"stack.embedding.forward_efficiency", 0.8, 0},
                                   {"stack.embedding.backward_efficiency", 0.8, 0},
                                   {"stack.norm.forward_efficiency", 0.8, 0},
                                   {"stack.norm.backward_efficiency", 0.8, 0},
                                   {"stack.rope.forward_efficiency", 0.8, 0},
                                   {"stack.rope.backward_efficiency", 0.8, 0},
                                   {"stack.gated_activation.forward_efficiency", 0.8, 0},
                                   {"stack.gated_activation.backward_efficiency", 0.8, 0},
                                   {"stack.residual.forward_efficiency", 0.8, 0},
                                   {"stack.residual.backward_efficiency", 0.8, 0},
                                   {"stack.loss.forward_efficiency", 0.8, 0},
                                   {"stack.loss.backward_efficiency", 0.8, 0},
                                   {"stack.optimizer.efficiency", 0.8, 0},
                                   {"stack.copies.cast", 0.8, 0},
                                   {"stack.copies.concatenate", 0.8, 0},
                                   {"stack.copies.copy", 0.8, 0},
                                   {"stack.copies.scale", 0.8, 0},
                                   {"stack.copies.add", 0.8, 0},
                                   {"cost.memory.stream_efficiency", 0.3, 1},
                                   {"cost.memory.t1_s", 0.6, 2},
                                   {"cost.memory.l2_speedup", 0.4, 3}};
constexpr Known kCollectiveValues[] = {{"cost.collectives.simple.bytes_per_s", 0.4, 0},
                                       {"cluster.nic_efficiency", 0.3, 0},
                                       {"cost.collectives.ll.base_s", 0.5, 1},
                                       {"cost.collectives.ll.bytes_per_s", 0.4, 1},
                                       {"cost.collectives.ll128.bytes_per_s", 0.4, 1},
                                       {"cost.collectives.nvls_simple.bytes_per_s", 0.4, 1},
                                       {"cost.collectives.simple_sqrt_s", 0.7, 2},
                                       {"cost.collectives.simple.base_s", 0.5, 2},
                                       {"cost.collectives.ll128.base_s", 0.5, 2},
                                       {"cost.collectives.nvls_simple.base_s", 0.5, 2},
                                       {"cluster.net_latency_s", 1.0, 2},
                                       {"cost.collectives.ll_channel_bytes_per_s", 0.5, 3},
                                       {"cost.collectives.ll_spread_s", 0.6, 3},
                                       {"cost.collectives.gather_copy_bytes_per_s", 0.6, 3},
                                       {"cost.collectives.reduce_copy_bytes_per_s", 0.6, 3},
                                       {"cost.collectives.ll.hop_s", 0.6, 4},
                                       {"cost.collectives.ll128.hop_s", 0.6, 4},
                                       {"cost.collectives.simple.hop_s", 0.6, 4}};
constexpr Known kHostValues[] = {{"stack.host.forward_launch_s", 0.8, 0},
                                 {"stack.host.backward_launch_s", 0.8, 0},
                                 {"stack.host.step_s", 1.5, 0}};
constexpr Known kContentionValues[] = {{"cost.contention.kernels", 0.3, 0},
                                       {"cost.contention.nvlink_collectives", 0.2, 0},
                                       {"cost.contention.other_collectives", 0.2, 0}};

template <typename Use>
void for_each_known(CostGroup group, Use use) {
  const auto all = [&](const auto& list) {
    for (const Known& known : list) use(known);
  };
  switch (group) {
    case CostGroup::kProducts:
      return all(kProductValues);
    case CostGroup::kAttention:
      return all(kAttentionValues);
    case CostGroup::kMemory:
      return all(kMemoryValues);
    case CostGroup::kCollectives:
      return all(kCollectiveValues);
    case CostGroup::kHost:
      return all(kHostValues);
    case CostGroup::kContention:
      return all(kContentionValues);
  }
}

/// The set of attention parameters that the profile's stack runs.
std::string attention_kernel(const profiles::Profile& profile) {
  return profile.cost.attention.contains(profile.stack.attention_kernel)
             ? profile.stack.attention_kernel
             : "fa2";
}

}  // namespace

EditableProfile::EditableProfile(profiles::Profile profile)
    : profile_(std::move(profile)), fields_(profiles::fields_of(profile_)) {}

double* EditableProfile::find(const std::string& path) {
  const profiles::Field* field = fields_.find(path);
  if (field == nullptr) return nullptr;
  double* const* number = std::get_if<double*>(&field->target);
  return number != nullptr ? *number : nullptr;
}

std::vector<Adjustable> adjustable_values(const profiles::Profile& profile, CostGroup group) {
  profiles::Profile copy = profile;
  const profiles::FieldList fields = profiles::fields_of(copy);
  std::vector<Adjustable> values;
  for_each_known(group, [&](const Known& known) {
    std::string path = known.path;
    if (const std::size_t at = path.find("{}"); at != path.npos) {
      path.replace(at, 2, attention_kernel(profile));
    }
    const profiles::Field* field = fields.find(path);
    if (field == nullptr) return;
    const double value = *std::get<double*>(field->target);
    // What a step adds may well be nothing in a profile; it is found from its measurement.
    if (!(value > 0) && group != CostGroup::kHost) return;
    constexpr double kSmallest = 1e-12;
    const double lower = std::max(field->accepted.min, kSmallest);
    const double upper = std::min(field->accepted.max, 1e19);
    values.push_back({std::move(path), known.spread, known.rank, known.relative, lower, upper});
  });
  return values;
}

}  // namespace shardwright::sim
