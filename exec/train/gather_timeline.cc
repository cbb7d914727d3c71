// SPDX-License-Identifier: Apache-2.0
#include "exec/train/gather_timeline.h"

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "exec/trace/name_table.h"

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

/// What every rank has, one after the other by rank.
std::vector<std::string> gather_names(Communicator& world, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + '\n';
  const auto mine = static_cast<std::int64_t>(text.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  world.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(sizes)));
  const auto most = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  if (most == 0) return {};
  text.resize(most, '\n');  // empty names, which are no names
  std::string all(most * sizes.size(), '\n');
  world.exchange(std::as_bytes(std::span(text)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> gathered;
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = all.find('\n', begin);
    if (end > begin) gathered.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return gathered;
}

}  // namespace

Timeline gather_timeline(Communicator& world, Timeline mine) {
  const std::vector<std::string> own = std::exchange(mine.names, {});
  NameTable table(mine.names);
  for (const std::string& name : gather_names(world, own)) table.index_of(name);
  table.rename(mine.spans, own);
  table.rename(mine.host, own);
  gather_spans(world, mine.spans);
  gather_spans(world, mine.host);
  for (const Span& span : mine.spans) mine.step_ns = std::max(mine.step_ns, span.end_ns);
  return mine;
}

}  // namespace shardwright::exec
