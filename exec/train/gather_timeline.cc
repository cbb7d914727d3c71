#include "exec/train/gather_timeline.h"

#include <algorithm>
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

}  // namespace shardwright::exec
