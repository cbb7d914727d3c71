// SPDX-License-Identifier: Apache-2.0
#include "sim/pipeline/chunk_times.h"

#include <algorithm>
#include <optional>

namespace shardwright::sim {
namespace {

/// (more - less) / parts, with nothing below 0 in its length.
PassTime difference(const StepTime& more, const StepTime& less, int parts = 1) {
  const auto share = [&](Nanoseconds a, Nanoseconds b) { return (a - b) / parts; };
  PassTime pass;
  pass.length_ns = std::max<Nanoseconds>(0, share(more.step_ns, less.step_ns));
  pass.time.compute_ns = share(more.time.compute_ns, less.time.compute_ns);
  pass.time.exposed_ns = share(more.time.exposed_ns, less.time.exposed_ns);
  pass.time.optimizer_ns = share(more.time.optimizer_ns, less.time.optimizer_ns);
  pass.time.host_ns =
      pass.length_ns - pass.time.compute_ns - pass.time.exposed_ns - pass.time.optimizer_ns;
  for (std::size_t g = 0; g < pass.exposed_ns.size(); ++g)
    pass.exposed_ns[g] = share(more.exposed_ns[g], less.exposed_ns[g]);
  return pass;
}

const Section& section_of(const Schedule& schedule, ChunkSection which) {
  return schedule.sections[static_cast<std::size_t>(which)];
}

/// Calls f(block, operation, cost) for what the compute stream does in backward.
template <typename F>
void for_backward(const TimedChunk& chunk, F&& f) {
  const Schedule& schedule = chunk.schedule;
  const Section& section = section_of(schedule, ChunkSection::kBackward);
  for (const Block& block : schedule.blocks_of(section)) {
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      if (schedule.ops[i].stream == 0) f(block, schedule.ops[i], chunk.costs[i]);
    }
  }
}

void sum_backward(TimedChunk& chunk) {
  ChunkPasses& passes = chunk.passes;
  Nanoseconds delayed = 0, of_head = 0;
  double alone = 0, contended = 0;
  for_backward(chunk, [&](const Block& block, const Op& op, const OpCost& cost) {
    alone += static_cast<double>(cost.alone_ns) * block.repeats;
    contended += static_cast<double>(cost.contended_ns) * block.repeats;
    if (!op.deferrable) return;
    delayed += cost.alone_ns * block.repeats;
    if (block.first_unit == chunk.schedule.head_unit()) of_head += cost.alone_ns;
  });
  passes.delayed_ns = std::min(delayed, passes.backward.length_ns);
  passes.head_delayed_ns = std::min(of_head, passes.delayed_ns);
  passes.slowed_share = contended > 0 ? 1 - alone / contended : 0;
}

void sum_tied(TimedChunk& chunk) {
  const Schedule& schedule = chunk.schedule;
  const Section& section = section_of(schedule, ChunkSection::kTiedSum);
  for (const Block& block : schedule.blocks_of(section)) {
    for (std::uint32_t i = block.first_op; i < block.first_op + block.op_count; ++i) {
      const Op& op = schedule.ops[i];
      if (op.kind == OpKind::kReceive) chunk.passes.tied_bytes += op.work.bytes;
      if (op.stream == 0) chunk.passes.tied_add_ns += chunk.costs[i].alone_ns;
    }
  }
}

}  // namespace

void add(PassTime& to, const PassTime& more, double factor) {
  const auto part = [factor](Nanoseconds time) {
    return static_cast<Nanoseconds>(static_cast<double>(time) * factor);
  };
  to.length_ns += part(more.length_ns);
  to.time.compute_ns += part(more.time.compute_ns);
  to.time.exposed_ns += part(more.time.exposed_ns);
  to.time.host_ns += part(more.time.host_ns);
  to.time.optimizer_ns += part(more.time.optimizer_ns);
  for (std::size_t g = 0; g < to.exposed_ns.size(); ++g)
    to.exposed_ns[g] += part(more.exposed_ns[g]);
}

StepTime ChunkTimer::run(TimedChunk& chunk, std::initializer_list<Part> parts, Timeline* timeline,
                         std::vector<OpInstance>* instances) {
  std::vector<Section>& sections = chunk.schedule.sections;
  written_ = sections;
  sections.clear();
  for (const Part& part : parts) {
    Section section = written_[static_cast<std::size_t>(part.section)];
    section.repeats = part.repeats;
    if (section.block_count > 0) sections.push_back(section);
  }
  EngineOptions options = engine_options(costs_.operations().gpu());
  options.timeline = timeline;
  const StepTime step = engine_.run(chunk.schedule, chunk.costs, options);
  if (instances != nullptr) {
    for_each_op(chunk.schedule, [&](const OpInstance& at, const Op&) { instances->push_back(at); });
  }
  sections = written_;
  return step;
}

/// Runs with nothing but one part of backward's operations.
template <typename Run>
void ChunkTimer::run_part(TimedChunk& chunk, PassPart part, const Run& run) {
  if (part == PassPart::kAll) return run();
  const std::vector<OpCost> whole = chunk.costs;
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (!is_in(chunk.schedule.ops[i], part)) chunk.costs[i] = {};
  }
  run();
  chunk.costs = whole;
}

PassTime ChunkTimer::part_of_backward(TimedChunk& chunk, PassPart part) {
  using S = ChunkSection;
  PassTime time;
  run_part(chunk, part, [&] {
    const StepTime two = run(chunk, {{S::kBackward, 2}});
    time = difference(run(chunk, {{S::kBackward, 4}}), two, 2);
  });
  return time;
}

void ChunkTimer::time(TimedChunk& chunk, bool splits_backward) {
  costs_.cost(chunk.schedule, chunk.costs);
  // The host's own work of a step is not a chunk's.
  chunk.costs.front().host_ns = 0;
  ChunkPasses& passes = chunk.passes;
  passes = {};
  passes.flops = executed_flops(chunk.schedule);
  passes.sent = communication_by_group(chunk.schedule);
  const auto resident = [](const StepTime& step, const StepTime& without) {
    return std::max<Nanoseconds>(0, step.communication_ns - without.communication_ns);
  };
  using S = ChunkSection;
  chunk.two_forward = run(chunk, {{S::kForward, 2}});
  passes.forward = difference(run(chunk, {{S::kForward, 4}}), chunk.two_forward, 2);
  const StepTime two_backward = run(chunk, {{S::kBackward, 2}});
  if (splits_backward) {  // into passes that hide nothing of each other
    passes.backward = part_of_backward(chunk, PassPart::kPrompt);
    add(passes.backward, part_of_backward(chunk, PassPart::kDelayed));
  } else {
    passes.backward = difference(run(chunk, {{S::kBackward, 4}}), two_backward, 2);
  }
  const StepTime last = run(chunk, {{S::kBackward, 1}, {S::kLastBackward, 1}});
  passes.reduction = difference(last, two_backward);
  passes.reducing_ns = resident(last, two_backward);
  const StepTime first = run(chunk, {{S::kPrepare, 1}, {S::kFirstForward, 1}, {S::kForward, 1}});
  passes.first_forward = difference(first, chunk.two_forward);
  passes.gathering_ns = resident(first, chunk.two_forward);
  passes.update = difference(run(chunk, {{S::kUpdate, 1}}), {});
  for (const S pass : {S::kForward, S::kBackward}) {
    const Section& section = section_of(chunk.schedule, pass);
    passes.issued_ns += issued_ns(chunk.schedule, chunk.costs, section);
    passes.kernels.add(kernel_times(chunk.schedule, chunk.costs, section), 1);
  }
  const Section& update = section_of(chunk.schedule, S::kUpdate);
  passes.update_issued_ns = issued_ns(chunk.schedule, chunk.costs, update);
  passes.update_kernels = kernel_times(chunk.schedule, chunk.costs, update);
  sum_backward(chunk);
  sum_tied(chunk);
}

PassTime ChunkTimer::first_forward(TimedChunk& chunk, Nanoseconds spare_ns) {
  const Section& receive = section_of(chunk.schedule, ChunkSection::kReceive);
  OpCost& input = chunk.costs[chunk.schedule.blocks[receive.first_block].first_op];
  input.alone_ns = input.contended_ns = spare_ns;
  using S = ChunkSection;
  StepTime first =
      run(chunk, {{S::kPrepare, 1}, {S::kReceive, 1}, {S::kFirstForward, 1}, {S::kForward, 1}});
  first.step_ns -= spare_ns;
  return difference(first, chunk.two_forward);
}

std::vector<PassOperation> ChunkTimer::pass_operations(TimedChunk& chunk, ChunkSection pass,
                                                       PassPart part) {
  // As many as are timed; the last but one has others before it and behind it.
  constexpr std::int32_t kPasses = 4, kTaken = 2;
  Timeline timeline;
  std::vector<OpInstance> instances;
  run_part(chunk, part, [&] { run(chunk, {{pass, kPasses}}, &timeline, &instances); });
  const std::size_t count = instances.size() / kPasses;
  const auto first = static_cast<OpId>(kTaken * count);
  std::vector<PassOperation> operations(count);
  for (std::size_t i = 0; i < count; ++i) {
    operations[i].at = instances[i];
    operations[i].at.micro_step = 0;
  }
  std::optional<Nanoseconds> begin;
  for (const Span& span : timeline.spans) {
    const OpId at = span.id - first;
    if (at < 0 || at >= std::ssize(operations)) continue;
    PassOperation& operation = operations[static_cast<std::size_t>(at)];
    operation.begin_ns = span.begin_ns;
    operation.end_ns = span.end_ns;
    if (span.stream == 0) begin = std::min(begin.value_or(span.begin_ns), span.begin_ns);
  }
  for (PassOperation& operation : operations) {
    if (operation.end_ns == 0) continue;
    operation.begin_ns -= begin.value_or(0);
    operation.end_ns -= begin.value_or(0);
  }
  std::erase_if(operations, [&](const PassOperation& operation) {
    return !is_in(chunk.schedule.ops[operation.at.op], part);
  });
  return operations;
}

}  // namespace shardwright::sim
