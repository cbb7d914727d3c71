#include "exec/train/gather_timeline.h"

#include <algorithm>
#include <map>
#include <span>
#include <type_traits>

namespace shardwright::exec {
namespace {

static_assert(std::is_trivially_copyable_v<Span>);

void gather_spans(Communicator& world, std::vector<Span>& spans) {
  const auto mine = static_cast<std::int64_t>(spans.size());
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world.size()));
  world.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(counts)));
  const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  if (most == 0) return;
  spans.resize(most);
  std::vector<Span> all(most * counts.size());
  world.exchange(std::as_bytes(std::span(spans)), std::as_writable_bytes(std::span(all)));
  spans.clear();
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
    spans.insert(spans.end(), begin, begin + counts[rank]);
  }
}

}  // namespace

Timeline gather_timeline(Communicator& world, Timeline mine) {
  gather_spans(world, mine.spans);
  gather_spans(world, mine.host);
  for (const Span& span : mine.spans) mine.step_ns = std::max(mine.step_ns, span.end_ns);
  return mine;
}

std::vector<MemorySample> memory_curve(const Schedule& schedule, const Timeline& timeline,
                                       std::int32_t rank) {
  struct Times {
    Nanoseconds begin = 0;
    Nanoseconds end = 0;
  };
  std::map<OpId, Times> times;
  for (const Span& span : timeline.spans) {
    if (span.rank != rank || span.id < 0) continue;
    const auto [at, first] = times.try_emplace(span.id, Times{span.begin_ns, span.end_ns});
    if (!first) at->second.end = std::max(at->second.end, span.end_ns);
  }
  std::map<Nanoseconds, Bytes> changes;
  Nanoseconds now = 0;  // operations without a span act when the one before them ends
  for_each_op(schedule, [&](const OpInstance& at, const Op&) {
    const auto found = times.find(at.id);
    const Times span = found != times.end() ? found->second : Times{now, now};
    now = span.end;
    const Block& block = schedule.blocks[at.block];
    for (std::uint32_t i = 0; i < block.action_count; ++i) {
      const MemoryAction& action = schedule.memory[block.first_action + i];
      if (action.op != at.op - block.first_op) continue;
      changes[action.acquire ? span.begin : span.end] +=
          action.acquire ? action.bytes : -action.bytes;
    }
  });
  Bytes alive = 0;
  for (const PersistentTensor& tensor : schedule.persistent) alive += tensor.bytes;
  std::vector<MemorySample> curve = {{0, alive, alive}};
  for (const auto& [at, change] : changes) {
    alive += change;
    curve.push_back({at, alive, alive});
  }
  return curve;
}

}  // namespace shardwright::exec
