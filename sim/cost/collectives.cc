// SPDX-License-Identifier: Apache-2.0
#include "sim/cost/collectives.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "sim/core/base/check.h"
#include "sim/core/cluster.h"
#include "sim/cost/cost.h"
#include "sim/cost/op_cost.h"

namespace shardwright::sim {

namespace {

using profiles::CollectiveParams;
using profiles::NcclTable;

constexpr double kNoTime = std::numeric_limits<double>::infinity();
constexpr int kLl = 0;
constexpr int kLl128 = 1;
constexpr int kSimple = 2;

/// latency + x * s_per_byte
struct Line {
  double latency_s;
  double s_per_byte;
  double at(double x) const { return latency_s + x * s_per_byte; }
};

/// From which x on `later` is cheaper than `sooner`.
double crossing(const Line& sooner, const Line& later) {
  if (later.latency_s <= sooner.latency_s) return 0;
  if (later.s_per_byte >= sooner.s_per_byte) return kNoTime;
  return (later.latency_s - sooner.latency_s) / (sooner.s_per_byte - later.s_per_byte);
}

/// Sizes of one call, all in bytes unless said.
struct Call {
  double x;    // on the wire per rank
  double own;  // a rank's own part
  double ranks;
  double steps;  // ring steps in a row
  bool reduces;
};

double limited(double bandwidth, double cap) {
  return cap > 0 ? std::min(bandwidth, cap) : bandwidth;
}

/// Fitted time of one ring protocol inside a node.
double one_node_time(const CollectiveParams& p, double cap, const Call& call, int protocol) {
  if (protocol == kLl) {
    const double one_channel = call.x / limited(p.ll_channel_bytes_per_s, cap);
    const double all_channels = p.ll_spread_s + call.x / limited(p.ll.bytes_per_s, cap);
    return p.ll.base_s + p.ll.hop_s * call.steps + std::min(one_channel, all_channels);
  }
  if (protocol == kLl128)
    return p.ll128.base_s + p.ll128.hop_s * call.steps + call.x / limited(p.ll128.bytes_per_s, cap);
  const double copy = call.reduces ? p.reduce_copy_bytes_per_s : p.gather_copy_bytes_per_s;
  return p.simple.base_s + p.simple.hop_s * call.steps +
         call.x / limited(p.simple.bytes_per_s, cap) + p.simple_sqrt_s * std::sqrt(call.x) +
         call.own / copy;
}

struct Choice {
  double time_s;
  Algorithm algorithm;
  Protocol protocol;
};

Choice one_node(const CollectiveParams& p, double cap, const Call& call) {
  const auto& hop = p.nvlink ? p.nccl.ring_nvlink_hop_s : p.nccl.ring_pci_hop_s;
  const auto line = [&](std::size_t protocol, double bandwidth) {
    return Line{p.nccl.ring_base_s[protocol] + hop[protocol] * call.steps, 1 / bandwidth};
  };
  const double nominal = p.nominal_bytes_per_s;
  const Line ll = line(kLl, std::min(p.nccl.ll_share * nominal, p.nominal_ll_bytes_per_s));
  const Line simple = line(kSimple, nominal);
  // Lower envelope of the three lines: where LL128 and Simple take over.
  double ll128_from = kNoTime;
  double simple_from = crossing(ll, simple);
  if (p.nvlink) {  // LL128 relies on NVLink's 128-byte stores
    const Line ll128 =
        line(kLl128, std::min(p.nccl.ll128_share * nominal, p.nominal_ll128_bytes_per_s));
    simple_from = std::max(simple_from, crossing(ll128, simple));
    ll128_from = crossing(ll, ll128);
    if (ll128_from >= simple_from) ll128_from = kNoTime;
  }
  int chosen = kLl;
  if (call.x >= simple_from) {
    chosen = kSimple;
  } else if (call.x >= ll128_from) {
    chosen = kLl128;
  }
  double time = one_node_time(p, cap, call, chosen);
  // A larger call may not be predicted faster: cap by the later protocols where they begin.
  const auto cap_by = [&](int protocol, double from) {
    if (chosen >= protocol || from == kNoTime) return;
    Call later = call;
    later.x = from;
    later.own = call.own * from / call.x;
    time = std::min(time, one_node_time(p, cap, later, protocol));
  };
  cap_by(kLl128, ll128_from);
  cap_by(kSimple, simple_from);
  return {time, Algorithm::kRing, static_cast<Protocol>(chosen + 1)};
}

/// Ring, tree and PAT between nodes by NCCL's table.
class Between {
 public:
  Between(const CollectiveParams& params, const NodeNetwork& network, const CollectiveGroup& group,
          const Call& call, double nodes)
      : p_(params), t_(params.nccl), net_(network), call_(call), nodes_(nodes) {
    const double per_node = static_cast<double>(group.ranks_per_node);
    one_per_node_ = group.ranks_per_node == 1;
    bus_ = network.bytes_per_s / static_cast<double>(group.groups_per_node);
    if (network.per_gpu_bytes_per_s > 0)
      bus_ = std::min(bus_, network.per_gpu_bytes_per_s * per_node);
    if (!one_per_node_)
      bus_ = std::min(bus_, limited(params.simple.bytes_per_s, network.intra_cap_bytes_per_s));
  }

  Choice best(Collective collective) const {
    Choice best{kNoTime, Algorithm::kRing, Protocol::kSimple};
    const auto take = [&](double time, Algorithm algorithm, int protocol) {
      if (time < best.time_s) best = {time, algorithm, static_cast<Protocol>(protocol + 1)};
    };
    for (const int protocol : {kLl, kLl128, kSimple}) {
      if (protocol == kLl128 && !(p_.nvlink && net_.ll128)) continue;
      take(ring(protocol), Algorithm::kRing, protocol);
      if (collective == Collective::kAllReduce) take(tree(protocol), Algorithm::kTree, protocol);
    }
    const bool pat = one_per_node_ && (collective == Collective::kAllGather ||
                                       collective == Collective::kReduceScatter);
    if (pat) take(pat_time(), Algorithm::kPat, kSimple);
    return best;
  }

 private:
  double overhead(int protocol) const {
    const double base = net_.amd_host ? t_.net_overhead_amd_s : t_.net_overhead_intel_s;
    return protocol == kSimple ? base * t_.simple_overhead_factor : base;
  }
  /// A step between nodes; Simple flushes after the data have arrived, which costs a second trip.
  double net_hop(const std::array<double, 3>& table, int protocol) const {
    return table[static_cast<std::size_t>(protocol)] +
           net_.hop_latency_s * (protocol == kSimple ? 2 : 1);
  }
  double bandwidth(int protocol) const {
    if (protocol == kLl) {
      const auto& caps = net_.amd_host ? t_.ll_cap_amd_bytes_per_s : t_.ll_cap_intel_bytes_per_s;
      return std::min(t_.ll_share * bus_, caps[nodes_ > 2 ? 1 : 0]);
    }
    if (protocol == kLl128)
      return std::min(t_.ll128_share * bus_, p_.nominal_ll128_net_bytes_per_s);
    return bus_;
  }
  double ramp(int protocol) const {
    return protocol == kSimple ? p_.simple_sqrt_s * std::sqrt(call_.x) : 0;
  }

  double ring(int protocol) const {
    const auto i = static_cast<std::size_t>(protocol);
    const double rounds = call_.steps / (call_.ranks - 1);
    const double link = (p_.nvlink ? t_.ring_nvlink_hop_s : t_.ring_pci_hop_s)[i];
    const double net = net_hop(one_per_node_ ? t_.tree_net_hop_s : t_.ring_net_hop_s, protocol);
    return t_.ring_base_s[i] +
           rounds *
               ((call_.ranks - nodes_) * std::max(link, overhead(protocol)) + (nodes_ - 1) * net) +
           call_.x / bandwidth(protocol) + ramp(protocol);
  }
  double tree(int protocol) const {
    const auto i = static_cast<std::size_t>(protocol);
    const double link = (p_.nvlink ? t_.tree_nvlink_hop_s : t_.tree_pci_hop_s)[i];
    const double up = (call_.ranks / nodes_ - 1) * std::max(link, overhead(protocol)) +
                      std::log2(nodes_) * net_hop(t_.tree_net_hop_s, protocol);
    // Every byte goes up and down once, whatever the number of ranks.
    const double bytes = call_.x * call_.ranks / (call_.ranks - 1);
    return t_.tree_base_s[i] + 2 * up + bytes / (t_.tree_share * bandwidth(protocol)) +
           ramp(protocol);
  }
  double pat_time() const {
    return t_.pat_base_s +
           std::log2(nodes_) * net_hop(t_.tree_net_hop_s, kSimple) / t_.pat_net_divisor +
           t_.pat_rank_s * call_.ranks + call_.x / (t_.pat_share * bus_) + ramp(kSimple);
  }

  const CollectiveParams& p_;
  const NcclTable& t_;
  const NodeNetwork& net_;
  const Call& call_;
  double nodes_;
  double bus_;
  bool one_per_node_;
};

/// NCCL drops channels until each has enough work: threads x bytes per thread, and 16 KiB at least.
int channels_of(int most, Protocol protocol, double bytes, double ranks) {
  double least = 16384;
  if (protocol == Protocol::kSimple) least = 512 * 64;
  if (protocol == Protocol::kLl) least = std::max(least, 512 * 8 * ranks);
  return std::clamp(static_cast<int>(std::min(bytes / least, 1e6)), 1, most);
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  constexpr std::array<std::string_view, 6> kNames{"none", "ring", "tree", "pat", "nvls", "copies"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string_view name_of(Protocol protocol) {
  constexpr std::array<std::string_view, 4> kNames{"none", "ll", "ll128", "simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

NodeNetwork network_of(const Cluster& cluster) {
  NodeNetwork network;
  network.bytes_per_s = cluster.node_net_bytes_per_s() * cluster.nic_efficiency;
  network.hop_latency_s = cluster.net_latency_s;
  network.amd_host = cluster.amd_host;
  return network;
}

CollectiveCost collective_cost(const CollectiveParams& params, const NodeNetwork& network,
                               const CollectiveGroup& group, Collective collective, double bytes) {
  SHARDWRIGHT_CHECK(group.ranks_per_node >= 1 && group.groups_per_node >= 1,
                    "a group of {} ranks per node, {} groups per node", group.ranks_per_node,
                    group.groups_per_node);
  CollectiveCost cost;
  if (group.ranks <= 1 || bytes <= 0) return cost;
  const double ranks = static_cast<double>(group.ranks);
  const bool all_reduce = collective == Collective::kAllReduce;
  const bool broadcast = collective == Collective::kBroadcast;
  const double rounds = all_reduce ? 2 : 1;
  const Call call{.x = broadcast ? bytes : rounds * bytes * (ranks - 1) / ranks,
                  .own = broadcast ? 0 : bytes / ranks,
                  .ranks = ranks,
                  .steps = rounds * (ranks - 1),
                  .reduces = all_reduce || collective == Collective::kReduceScatter};
  if (group.copies_take_turns > 0) {
    const double copy = params.reduce_copy_bytes_per_s;
    const double moved_s =
        call.x / params.simple.bytes_per_s + (call.reduces ? call.own / copy : 0.0);
    cost.time_s = rounds * params.simple.base_s + params.simple.hop_s * call.steps +
                  group.copies_take_turns * moved_s;
    cost.wire_bytes = call.x;
    cost.hbm_bytes =
        (call.reduces ? params.nccl.reduce_traffic : params.nccl.gather_traffic) * call.x;
    cost.algorithm = Algorithm::kCopies;
    return cost;
  }
  const std::int64_t nodes = (group.ranks - 1) / group.ranks_per_node + 1;
  Choice choice;
  int most = params.channels_one_node;
  if (nodes > 1) {
    if (network.bytes_per_s <= 0) {
      choice = {kNoTime, Algorithm::kRing, Protocol::kSimple};
    } else {
      choice = Between(params, network, group, call, static_cast<double>(nodes)).best(collective);
    }
    most = params.channels_multi_node;
  } else {
    choice = one_node(params, network.intra_cap_bytes_per_s, call);
    if (all_reduce && params.nvls && group.ranks > 2) {
      const double time = params.nvls_simple.base_s + params.nvls_simple.hop_s * call.steps +
                          call.x / params.nvls_simple.bytes_per_s +
                          params.simple_sqrt_s * std::sqrt(call.x);
      if (time < choice.time_s) choice = {time, Algorithm::kNvls, Protocol::kSimple};
    }
  }
  if (choice.algorithm == Algorithm::kNvls) most = params.channels_nvls;
  cost.time_s = choice.time_s;
  cost.wire_bytes = call.x;
  const double traffic = all_reduce     ? params.nccl.all_reduce_traffic
                         : call.reduces ? params.nccl.reduce_traffic
                                        : params.nccl.gather_traffic;
  cost.hbm_bytes = traffic * call.x;
  cost.algorithm = choice.algorithm;
  cost.protocol = choice.protocol;
  cost.channels = channels_of(most, choice.protocol, bytes, ranks);
  return cost;
}

CollectiveCost message_cost(const CollectiveParams& params, const NodeNetwork& network,
                            const CollectiveGroup& pair, double bytes, double most_bytes_per_s) {
  CollectiveCost cost = collective_cost(params, network, pair, Collective::kAllGather, 2 * bytes);
  if (most_bytes_per_s > 0 && pair.ranks_per_node > 1)
    cost.time_s = std::max(cost.time_s, bytes / most_bytes_per_s);
  return cost;
}

std::vector<std::optional<Nanoseconds>> network_times(const Schedule& schedule, std::int64_t stage,
                                                      const profiles::Profile& profile) {
  CostModel model(profile);
  std::vector<OpCost> costs;
  model.cost(schedule, costs);
  std::vector<std::optional<Nanoseconds>> times(schedule.ops.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    const Op& op = schedule.ops[i];
    if (op.work.kind == WorkKind::kCollective) times[i] = costs[i].alone_ns;
    if (op.peer < 0) continue;
    times[i] = 0;
    if (op.kind != OpKind::kSend) continue;
    // Between the last stage and the first a message goes as far as between the first two.
    const bool neighbours = std::abs(op.peer - stage) == 1;
    const std::int64_t edge = neighbours ? std::min<std::int64_t>(op.peer, stage) : 0;
    times[i] = to_ns(model.operations().transfer_s(edge, static_cast<double>(op.work.bytes)));
  }
  return times;
}

namespace {

double real(std::int64_t value) {
  return static_cast<double>(value);
}

/// Seconds for what leaves the domain.
double network_s(double bytes, double nic_bytes_per_s) {
  if (bytes <= 0) return 0;
  return nic_bytes_per_s > 0 ? bytes / nic_bytes_per_s : std::numeric_limits<double>::infinity();
}

/// Ranks of a domain receive together what comes from outside, so their numbers of rows even out.
double busiest_domain(const DispatchShape& shape) {
  return 1 + (shape.busiest - 1) / std::sqrt(real(shape.ranks_in_domain));
}

}  // namespace

DispatchCost exchange_cost(const profiles::ExchangeParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s) {
  DispatchCost cost;
  if (shape.ranks <= 1 || shape.tokens <= 0) return cost;
  const double rows = shape.tokens * real(shape.per_token) * shape.token_bytes;
  const double inside = rows * real(shape.ranks_in_domain - 1) / real(shape.ranks);
  const double outside = rows * real(shape.ranks - shape.ranks_in_domain) / real(shape.ranks);
  cost.sent_bytes = inside + outside;
  cost.time_s = params.base_s + std::max(params.sqrt_s * std::sqrt(shape.busiest * inside) +
                                             shape.busiest * inside / params.bytes_per_s,
                                         network_s(shape.busiest * outside, nic_bytes_per_s));
  cost.sms = 16;  // NCCL's channels of sendrecv
  return cost;
}

DispatchCost dispatch_cost(const profiles::DispatchParams& params, const DispatchShape& shape,
                           double nic_bytes_per_s, int sms) {
  DispatchCost cost;
  if (shape.ranks <= 1 || shape.tokens <= 0) return cost;
  const double token = shape.tokens * shape.token_bytes;
  const std::int64_t domains = std::max<std::int64_t>(1, shape.ranks / shape.ranks_in_domain);
  const double ranks = distinct_places(shape.experts, shape.per_token, shape.ranks);
  double reached = distinct_places(shape.experts, shape.per_token, domains);
  if (shape.domains_per_token > 0) {
    reached = std::min(reached, real(shape.domains_per_token));
  }
  const double outside = token * reached * real(domains - 1) / real(domains);
  // What other domains send here is passed on inside, so every copy but those that stay crosses
  // NVLink once.
  const double inside = token * ranks;
  const double rate = std::min(sms * params.sm_bytes_per_s, params.link_bytes_per_s);
  cost.time_s = params.t0_s + params.token_s * shape.tokens / std::max(sms, 1) +
                std::max(shape.busiest * inside / rate,
                         busiest_domain(shape) * network_s(outside, nic_bytes_per_s));
  cost.sent_bytes = inside * real(shape.ranks - 1) / real(shape.ranks);
  cost.sms = sms;
  return cost;
}

}  // namespace shardwright::sim
