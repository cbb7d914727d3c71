// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/pass_graph.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace shardwright::sim {
namespace {

// Of a pass that has not begun: what is before its begin on other streams lies below 0.
constexpr Nanoseconds kLongAgo = std::numeric_limits<Nanoseconds>::min() / 4;

}  // namespace

PassGraph::PassGraph(const Schedule& schedule, const std::vector<PassOperation>& operations)
    : streams_(schedule.streams.size()) {
  const auto units = static_cast<std::size_t>(schedule.units());
  std::vector<std::int32_t> recorded(schedule.event_names.size() * units, -1);
  const auto slot = [&](EventRef event, std::int32_t unit) -> std::int32_t* {
    const std::int32_t of = unit + event.offset;
    if (!event || of < 0 || of >= schedule.units()) return nullptr;
    return &recorded[event.name * units + static_cast<std::size_t>(of)];
  };
  Rank alone{std::vector<Nanoseconds>(streams_, kLongAgo), {}};
  for (const PassOperation& operation : operations) {
    const Op& op = schedule.ops[operation.at.op];
    if (op.work.kind == WorkKind::kHost) continue;
    Node& node = nodes_.emplace_back();
    node.stream = op.stream;
    node.takes_ns = operation.end_ns - operation.begin_ns;
    if (node.takes_ns > 0 && op.work.kind != WorkKind::kTransfer) {
      const bool collective = op.work.kind == WorkKind::kCollective;
      node.kind = collective ? Node::Kind::kCollective : Node::Kind::kKernel;
      node.delayed = op.deferrable && op.stream == 0;
    }
    std::fill(std::begin(node.deps), std::end(node.deps), -1);
    for (std::size_t i = 0; i < kMaxWaits; ++i) {
      const std::int32_t* awaited = slot(op.waits[i], operation.at.unit);
      if (awaited != nullptr) node.deps[i] = *awaited;
    }
    if (std::int32_t* event = slot(op.record, operation.at.unit))
      *event = static_cast<std::int32_t>(nodes_.size()) - 1;
    const Nanoseconds could = ready(node, alone);
    const bool held = node.takes_ns > 0 && operation.begin_ns > could;
    node.held_until_ns = held ? operation.begin_ns : kLongAgo;
    const Nanoseconds end = std::max(could, node.held_until_ns) + node.takes_ns;
    alone.ends.push_back(end);
    alone.free[node.stream] = end;
  }
  end_ns_ = streams_ > 0 ? alone.free.front() : 0;
}

Nanoseconds PassGraph::ready(const Node& node, const Rank& rank) {
  Nanoseconds at = rank.free[node.stream];
  for (const std::int32_t dep : node.deps) {
    if (dep >= 0) at = std::max(at, rank.ends[static_cast<std::size_t>(dep)]);
  }
  return at;
}

VariedPass PassGraph::run(std::span<const RankDraws> draws, std::uint64_t first) const {
  if (nodes_.empty()) return {};
  std::vector<Rank> ranks(draws.size(), Rank{std::vector<Nanoseconds>(streams_, kLongAgo), {}});
  std::vector<Nanoseconds> begins(ranks.size()), delayed(ranks.size());
  VariedPass pass;
  for (Rank& rank : ranks) rank.ends.reserve(nodes_.size());
  for (const Node& node : nodes_) {
    Nanoseconds last = kLongAgo;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      begins[r] = std::max(ready(node, ranks[r]), node.held_until_ns);
      last = std::max(last, begins[r]);
    }
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      Nanoseconds takes = node.takes_ns;
      if (node.kind == Node::Kind::kKernel) {
        takes = static_cast<Nanoseconds>(
            std::llround(static_cast<double>(takes) * draws[r].factor(first)));
        if (node.delayed) delayed[r] += takes - node.takes_ns;
      } else if (node.kind == Node::Kind::kCollective) {
        pass.waiting_ns += last - begins[r];
        begins[r] = last;
      }
      const Nanoseconds end = begins[r] + takes;
      ranks[r].ends.push_back(end);
      ranks[r].free[node.stream] = end;
    }
    ++first;
  }
  Nanoseconds end = kLongAgo;
  for (const Rank& rank : ranks) end = std::max(end, rank.free.front());
  pass.longer_ns = end - end_ns_;
  pass.delayed_longer_ns = *std::max_element(delayed.begin(), delayed.end());
  pass.waiting_ns /= std::ssize(ranks);
  return pass;
}

}  // namespace shardwright::sim
