// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/joint_stages.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/plan.h"

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

namespace {

constexpr std::int64_t kMostPassRanks = 8;
constexpr std::int64_t kMostStageRanks = 16;

/// Which draws are those of a pass: passes of a rank share none.
enum class Drawn : std::uint64_t { kForward, kBackward, kUpdate, kCount };

std::uint64_t first_draw(const PipelineShape& shape, std::int32_t chunk, std::int32_t micro_batch,
                         Drawn what) {
  constexpr std::uint64_t kOperations = 1 << 20;  // more than a pass has
  const std::int32_t place = micro_batch * shape.chunks + chunk;
  const auto pass = static_cast<std::uint64_t>(place);
  return kOperations *
         (pass * static_cast<std::uint64_t>(Drawn::kCount) + static_cast<std::uint64_t>(what));
}

/// Of two replicas the later one; a stage gathers for the one that begins first.
void take_slower(PipelineResult& of, const PipelineResult& other) {
  of.makespan = std::max(of.makespan, other.makespan);
  for (std::size_t s = 0; s < of.stages.size(); ++s) {
    StageTimes& mine = of.stages[s];
    const StageTimes& theirs = other.stages[s];
    mine.end = std::max(mine.end, theirs.end);
    for (std::size_t c = 0; c < mine.last_backward.size(); ++c) {
      mine.last_backward[c] = std::max(mine.last_backward[c], theirs.last_backward[c]);
      mine.first_forward[c] = std::min(mine.first_forward[c], theirs.first_forward[c]);
    }
  }
}

Nanoseconds bubble_of(const PipelineResult& pipeline, std::size_t stage) {
  const StageTimes& times = pipeline.stages[stage];
  return pipeline.makespan - times.busy - times.transfers;
}

}  // namespace

JointOptions joint_options(const Plan& plan) {
  const Parallelism& p = plan.parallel;
  const std::int64_t meet = std::max(p.tp * p.cp, p.ep * p.etp);
  const std::int64_t replicas = std::max<std::int64_t>(1, plan.gpus / (p.pp * meet));
  JointOptions options;
  options.pass_ranks = static_cast<int>(std::min(meet, kMostPassRanks));
  options.replicas =
      static_cast<int>(std::min(replicas, kMostStageRanks / std::int64_t{options.pass_ranks}));
  return options;
}

std::span<const RankDraws> JointStages::ranks_of(std::int32_t replica, std::int32_t stage) const {
  const auto ranks = static_cast<std::size_t>(options_.pass_ranks);
  const std::int32_t place = replica * stages_ + stage;
  const auto at = static_cast<std::size_t>(place);
  return {draws_.data() + at * ranks, ranks};
}

/// Adds what waits within passes to waiting_ns_, of all stages and replicas.
PipelineTimes JointStages::vary(const PipelineShape& shape, const PipelineTimes& times,
                                const std::vector<std::size_t>& chunks, std::int32_t replica) {
  PipelineTimes varied = times;
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    for (std::int32_t c = 0; c < shape.chunks; ++c) {
      const Graphs& graphs = graphs_[of_chunk(chunks, shape, {s, c})];
      const std::size_t place = place_index(shape, {s, c});
      for (std::int32_t k = 0; k < shape.passes(); ++k) {
        const std::span<const RankDraws> ranks = ranks_of(replica, s);
        const VariedPass forward =
            graphs.forward.run(ranks, first_draw(shape, c, k, Drawn::kForward));
        const VariedPass backward =
            graphs.backward.run(ranks, first_draw(shape, c, k, Drawn::kBackward));
        waiting_ns_ += forward.waiting_ns + backward.waiting_ns;
        ChunkTimes& pass = varied.by_micro_batch.emplace_back(times.chunks[place]);
        const auto add = [](Nanoseconds& to, Nanoseconds more) {
          to = std::max<Nanoseconds>(0, to + more);
        };
        add(pass.forward, forward.longer_ns);
        add(pass.input_gradient, backward.longer_ns - backward.delayed_longer_ns);
        add(pass.weight_gradient, backward.delayed_longer_ns);
      }
    }
  }
  return varied;
}

PipelineResult JointStages::run(const PipelineShape& shape, const PipelineTimes& times,
                                const std::vector<std::size_t>& chunks,
                                std::span<TimedChunk* const> timed, ChunkTimer& timer) {
  stages_ = shape.stages;
  draws_.clear();
  const int count = options_.replicas * shape.stages * options_.pass_ranks;
  for (int rank = 0; rank < count; ++rank)
    draws_.emplace_back(options_.kernel_spread, options_.seed, static_cast<std::uint64_t>(rank),
                        options_.rank_spread);
  graphs_.clear();
  for (TimedChunk* chunk : timed) {
    const auto graph = [&](ChunkSection pass) {
      return PassGraph(chunk->schedule, timer.pass_operations(*chunk, pass));
    };
    graphs_.push_back({graph(ChunkSection::kForward), graph(ChunkSection::kBackward),
                       graph(ChunkSection::kUpdate)});
  }
  waiting_ns_ = bubble_longer_ns_ = 0;
  std::vector<PipelineResult> replicas;
  for (std::int32_t r = 0; r < options_.replicas; ++r)
    replicas.push_back(run_pipeline(shape, vary(shape, times, chunks, r), StepLength::kWhole));
  PipelineResult slowest = replicas.front();
  for (const PipelineResult& replica : replicas) take_slower(slowest, replica);
  const PipelineResult alike = run_pipeline(shape, times);
  update_longer_.clear();
  for (std::int32_t s = 0; s < shape.stages; ++s) {
    const auto stage = static_cast<std::size_t>(s);
    for (const PipelineResult& replica : replicas) {
      waiting_ns_ += slowest.stages[stage].end - replica.stages[stage].end;
      bubble_longer_ns_ += bubble_of(replica, stage) - bubble_of(alike, stage);
    }
    update_longer_.push_back(update(shape, chunks, s));
  }
  const std::int32_t means = options_.replicas * shape.stages;
  waiting_ns_ /= means;
  bubble_longer_ns_ /= means;
  return slowest;
}

/// All replicas of a stage update at once.
Nanoseconds JointStages::update(const PipelineShape& shape, const std::vector<std::size_t>& chunks,
                                std::int32_t stage) const {
  std::vector<RankDraws> ranks;
  for (std::int32_t r = 0; r < options_.replicas; ++r) {
    const std::span<const RankDraws> of = ranks_of(r, stage);
    ranks.insert(ranks.end(), of.begin(), of.end());
  }
  Nanoseconds longer = 0;
  for (std::int32_t c = 0; c < shape.chunks; ++c) {
    const Graphs& graphs = graphs_[of_chunk(chunks, shape, {stage, c})];
    longer += graphs.update.run(ranks, first_draw(shape, c, 0, Drawn::kUpdate)).longer_ns;
  }
  return longer;
}

}  // namespace shardwright::sim
