// SPDX-License-Identifier: Apache-2.0
#include "sim/trace/sent_messages.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace shardwright::sim {
namespace {

/// The messages from one stage to another on one channel.
struct Messages {
  std::vector<OpId> sends, receives;  // in the order of the step
};

std::map<OpId, OpId> sends_by_receive(const std::map<OpId, TracedOperation>& operations) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Messages> channels;
  for (const auto& [id, operation] : operations) {
    if (operation.peer < 0) continue;
    if (operation.kind == OpKind::kSend)
      channels[{operation.stage, operation.peer, operation.channel}].sends.push_back(id);
    if (operation.kind == OpKind::kReceive)
      channels[{operation.peer, operation.stage, operation.channel}].receives.push_back(id);
  }
  std::map<OpId, OpId> sends;
  for (const auto& [channel, messages] : channels) {
    if (messages.sends.size() != messages.receives.size()) continue;
    for (std::size_t i = 0; i < messages.sends.size(); ++i)
      sends[messages.receives[i]] = messages.sends[i];
  }
  return sends;
}

}  // namespace

std::map<SpanKey, Nanoseconds> sent_messages(const StepTrace& trace) {
  std::map<SpanKey, Nanoseconds> sent;
  const std::map<OpId, OpId> sends = sends_by_receive(trace.operations);
  if (sends.empty()) return sent;
  std::map<std::int32_t, std::vector<std::int32_t>> ranks_of;  // by stage
  for (const auto& [rank, of] : trace.timeline.stages) ranks_of[of.stage].push_back(rank);
  std::map<SpanKey, Nanoseconds> begins;
  for (const Span& span : trace.timeline.spans) {
    if (trace.operations.at(span.id).kind != OpKind::kSend) continue;
    const auto [at, fresh] = begins.try_emplace({span.id, span.rank, span.step}, span.begin_ns);
    if (!fresh) at->second = std::min(at->second, span.begin_ns);
  }
  for (const Span& span : trace.timeline.spans) {
    const auto send = sends.find(span.id);
    if (send == sends.end()) continue;
    const std::vector<std::int32_t>& here = ranks_of[trace.timeline.stage_of(span.rank)];
    const std::vector<std::int32_t>& there = ranks_of[trace.operations.at(span.id).peer];
    const auto place = static_cast<std::size_t>(
        std::lower_bound(here.begin(), here.end(), span.rank) - here.begin());
    if (place >= there.size()) continue;
    const auto begin = begins.find({send->second, there[place], span.step});
    if (begin != begins.end()) sent[{span.id, span.rank, span.step}] = begin->second;
  }
  return sent;
}

}  // namespace shardwright::sim
