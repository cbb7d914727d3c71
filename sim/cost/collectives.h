// SPDX-License-Identifier: Apache-2.0
// Time of an NCCL collective, with the algorithm and protocol that NCCL would pick.
//
// Let x be the bytes that each rank puts on the wire: S (n-1)/n for all_gather and reduce_scatter
// of S gathered or unreduced bytes, twice that for all_reduce, S for broadcast.
//
// Inside a node each protocol p of the ring follows t_p = base + hop * steps + x / bandwidth, with
//   LL      spreading from one channel over all of them: min(x/b1, spread + x/b);
//   Simple  a ramp c sqrt(x), and one step of S/n bytes that only copies a rank's own part (a ring
//           step that both receives and sends hides it; with two ranks it is half of the work);
// and NVLS (all_reduce in the switch) a line of its own with the same ramp. Which protocol runs is
// decided as NCCL decides it, by NCCL's own linear model (graph/tuning.cc), not by what would be
// fastest. Between nodes latency comes from that same table: base + steps in a node * max(link,
// overhead) + steps between nodes * net, over the lesser of ring and NIC bandwidth; the cheapest of
// LL, LL128, Simple, tree (all_reduce) and PAT (one rank per node) is taken. Left out: CollNet and
// NVLS between nodes, symmetric-memory and copy-engine kernels, congestion, stragglers. Fitted by
// profiles/research/kernels.py.
//
// Ranks that share a device copy and add in its memory: t = base + hop * steps + x / bandwidth +
// own part / copy rate with the parameters of Simple, the terms in bytes as often as ranks take
// turns.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "profiles/gpu_params.h"
#include "profiles/profile.h"
#include "sim/core/collective.h"
#include "sim/core/schedule.h"

namespace shardwright {
struct Cluster;
}

namespace shardwright::sim {

enum class Algorithm : std::uint8_t { kNone, kRing, kTree, kPat, kNvls, kCopies };
enum class Protocol : std::uint8_t { kNone, kLl, kLl128, kSimple };

std::string_view name_of(Algorithm algorithm);
std::string_view name_of(Protocol protocol);

/// What joins the nodes, and what the node does to links inside it.
struct NodeNetwork {
  double bytes_per_s = 0;          ///< all NICs of a node, as reached; 0: nodes are not linked
  double per_gpu_bytes_per_s = 0;  ///< what one GPU can bring to the NICs; 0: no limit
  double hop_latency_s = 0;        ///< of the network plugin, per step
  bool amd_host = false;
  bool ll128 = false;                ///< NICs hang on the GPU's PCIe switch, so LL128 is allowed
  double intra_cap_bytes_per_s = 0;  ///< measured ring bandwidth of this node, if lower; 0: none
};

/// The network of a cluster: NICs times efficiency.
NodeNetwork network_of(const Cluster& cluster);

struct CollectiveCost {
  double time_s = 0;
  double wire_bytes = 0;  ///< x above
  double hbm_bytes = 0;   ///< device memory traffic per rank: 2 x to copy, 3 x to reduce
  Algorithm algorithm = Algorithm::kNone;
  Protocol protocol = Protocol::kNone;
  int channels = 0;  ///< one CTA each: SMs that are taken while it runs
};

/// One rank or no bytes costs nothing. Nodes that are not linked give an infinite time. Never falls
/// when bytes grow or any bandwidth falls.
CollectiveCost collective_cost(const profiles::CollectiveParams& params, const NodeNetwork& network,
                               const CollectiveGroup& group, Collective collective, double bytes);

/// A message to the other rank of a pair: what each of them gathers of the other; within a node at
/// most `most_bytes_per_s` (ParallelSoftware), 0: without a limit.
CollectiveCost message_cost(const profiles::CollectiveParams& params, const NodeNetwork& network,
                            const CollectiveGroup& pair, double bytes, double most_bytes_per_s);

}  // namespace shardwright::sim

// What the network makes of a schedule's operations, for ranks that have none: the streams of
// virtual clocks (exec/host/host_device.h).

namespace shardwright::sim {

/// By operation of `schedule`, the one of `stage`: how long collectives take from when the last
/// rank has joined, and messages from when they leave; 0 of a receive, which ends when its message
/// is there. Empty: the operation is none of the network.
std::vector<std::optional<Nanoseconds>> network_times(const Schedule& schedule, std::int64_t stage,
                                                      const profiles::Profile& profile);

}  // namespace shardwright::sim

// Time to bring tokens to the ranks of their experts, or results back.
//
// NCCL's all-to-all sends a row for each of a token's experts. Kernels made for experts (DeepEP,
// HybridEP) send a token once to each rank that NVLink reaches and once to each further domain,
// where it is passed on (distinct_places in sim/core/collective.h).
//
//     all-to-all     t = base + c sqrt(x) + x / bandwidth, or y / NIC where that takes longer
//     rank by rank   t = t0 + token_s tokens / SMs + max(x / min(SMs rate, link), y / NIC)
//
// x: bytes over NVLink, y: bytes to other domains, of one rank. Sources of the forms: NCCL's
// sendrecv, deepseek-ai/DeepEP; fitted by profiles/research/kernels.py. Left out: congestion
// between domains, imbalance (the caller's tokens), low-latency kernels.

namespace shardwright::sim {

struct DispatchCost {
  double time_s = 0;
  double sent_bytes = 0;  ///< by a rank, to others
  int sms = 0;            ///< held while it runs
};

/// `nic_bytes_per_s`: what one rank reaches to other domains; 0: they are not linked.
DispatchCost exchange_cost(const profiles::ExchangeParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s);

/// `sms`: what the kernel holds.
DispatchCost dispatch_cost(const profiles::DispatchParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s, int sms);

}  // namespace shardwright::sim
