// The keys of the parameter structs of profiles/gpu_params.h, listed once.
//
// A visitor is called as v(key, value, accepted range) for numbers and arrays of numbers, v(key,
// value) for flags and nested structs. Reading and writing gpu_cost.json, `--set cost.*` and
// `inspect gpu` are all such visitors.
#pragma once

#include "profiles/gpu_params.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {

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
void visit(Visitor& v, ContentionParams& p) {
  v("kernels", p.kernels, between(0.1, 100.0));
  v("nvlink_collectives", p.nvlink_collectives, between(1.0, 100.0));
  v("other_collectives", p.other_collectives, between(1.0, 100.0));
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

}  // namespace shardwright::profiles
