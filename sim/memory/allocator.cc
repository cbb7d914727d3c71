// SPDX-License-Identifier: Apache-2.0
#include "sim/memory/allocator.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::sim {

namespace {

// The constants of c10/cuda/CUDACachingAllocator.cpp, with its names in brackets.
constexpr Bytes kGranularity = 512;                 // [kMinBlockSize]
constexpr Bytes kLargestSmall = Bytes{1} << 20;     // [kSmallSize]
constexpr Bytes kSmallSegment = Bytes{2} << 20;     // [kSmallBuffer]
constexpr Bytes kLargeSegment = Bytes{20} << 20;    // [kLargeBuffer]
constexpr Bytes kOwnSegmentFrom = Bytes{10} << 20;  // [kMinLargeAlloc]
constexpr Bytes kSegmentStep = Bytes{2} << 20;      // [kRoundLarge]

constexpr Bytes kMostBytes = Bytes{1} << 60;
constexpr int kMostStreams = 1024;

/// What is taken from the device for a block of `size` bytes, already rounded.
Bytes segment_size(Bytes size) {
  if (size <= kLargestSmall) return kSmallSegment;
  if (size < kOwnSegmentFrom) return kLargeSegment;
  return round_up(size, kSegmentStep);
}

void raise(AllocatorStats::Gauge& gauge, Bytes bytes) {
  gauge.now += bytes;
  gauge.peak = std::max(gauge.peak, gauge.now);
}

}  // namespace

CachingAllocator::CachingAllocator(AllocatorOptions options) : options_(options) {
  SHARDWRIGHT_CHECK(options.limit_bytes >= 0 && options.limit_bytes <= AllocatorOptions::kUnlimited,
                    "limit of {} bytes", options.limit_bytes);
  if (options.max_split_bytes <= kLargeSegment) {
    throw Error(fmt::format(
        "stack.allocator.max_split_bytes is {}, expected more than {} as PyTorch demands, or 0",
        options.max_split_bytes, kLargeSegment));
  }
}

void CachingAllocator::clear() {
  stats_ = {};
  blocks_.clear();
  first_unused_ = kNone;
  for (Pool& pool : pools_) {
    pool.free.clear();
    pool.unmapped.clear();
  }
  for (EventQueue& queue : events_) {
    queue.events.clear();
    queue.head = 0;
  }
  num_events_ = 0;
  next_address_ = 0;
}

Bytes CachingAllocator::page_size(std::uint32_t pool) {
  return is_small(pool) ? kSmallSegment : kLargeSegment;
}

void CachingAllocator::ensure_stream(int stream) {
  SHARDWRIGHT_CHECK(stream >= 0 && stream < kMostStreams, "stream {}", stream);
  const auto needed = static_cast<std::size_t>(stream) + 1;
  if (events_.size() >= needed) return;
  events_.resize(needed);
  pools_.resize(2 * needed);
}

// Blocks and their neighbours.

CachingAllocator::BlockId CachingAllocator::new_block(std::uint32_t pool, Bytes address, Bytes size,
                                                      State state) {
  BlockId id = first_unused_;
  if (id != kNone) {
    first_unused_ = blocks_[id].next;
  } else {
    id = static_cast<BlockId>(blocks_.size());
    blocks_.emplace_back();
  }
  blocks_[id] = {.size = size, .address = address, .pool = pool, .state = state};
  return id;
}

void CachingAllocator::drop_block(BlockId id) {
  blocks_[id].state = State::kUnused;
  blocks_[id].next = first_unused_;
  first_unused_ = id;
}

/// Cuts `size` bytes off the front; `id` keeps the rest.
CachingAllocator::BlockId CachingAllocator::split_front(BlockId id, Bytes size) {
  const BlockId front = new_block(blocks_[id].pool, blocks_[id].address, size, blocks_[id].state);
  Block& rest = blocks_[id];
  blocks_[front].prev = rest.prev;
  blocks_[front].next = id;
  if (rest.prev != kNone) blocks_[rest.prev].next = front;
  rest.prev = front;
  rest.address += size;
  rest.size -= size;
  return front;
}

/// Merges a neighbour into `id`; lists are the caller's matter.
void CachingAllocator::absorb(BlockId id, BlockId neighbour) {
  Block& block = blocks_[id];
  const Block& other = blocks_[neighbour];
  if (block.prev == neighbour) {
    block.address = other.address;
    block.prev = other.prev;
    if (block.prev != kNone) blocks_[block.prev].next = id;
  } else {
    block.next = other.next;
    if (block.next != kNone) blocks_[block.next].prev = id;
  }
  block.size += other.size;
  drop_block(neighbour);
}

// Allocation.

std::optional<CachingAllocator::BlockId> CachingAllocator::allocate(Bytes size, int stream,
                                                                    Nanoseconds host_now) {
  SHARDWRIGHT_CHECK(size >= 0 && size <= kMostBytes, "allocation of {} bytes", size);
  if (size == 0) return kEmptyBlock;
  ensure_stream(stream);
  if (num_events_ > 0) process_events(host_now);

  size = round_up(size, kGranularity);
  const std::uint32_t pool =
      2 * static_cast<std::uint32_t>(stream) + (size <= kLargestSmall ? 1 : 0);
  FreeList& list = pools_[pool].free;
  BlockId id = kNone;
  if (const std::optional<std::size_t> slot = find_cached(pool, size)) {
    id = list[*slot].block;
    if (should_split(blocks_[id], size)) {
      const BlockId rest = id;
      id = split_front(rest, size);
      list.replace_at(*slot, entry(rest));
    } else {
      list.erase_at(*slot);
    }
  } else {
    id = obtain(pool, size);
    if (id == kNone) {
      ++stats_.num_ooms;
      return std::nullopt;
    }
    if (should_split(blocks_[id], size)) {
      const BlockId rest = id;
      id = split_front(rest, size);
      pools_[pool].free.insert(entry(rest));
    }
  }

  Block& block = blocks_[id];
  block.state = State::kAllocated;
  raise(stats_.allocated, block.size);
  raise(stats_.active, block.size);
  return id;
}

bool CachingAllocator::should_split(const Block& block, Bytes size) const {
  const Bytes rest = block.size - size;
  if (is_small(block.pool) || options_.expandable_segments) return rest >= kGranularity;
  return size < options_.max_split_bytes && rest > kLargestSmall;
}

std::optional<std::size_t> CachingAllocator::find_cached(std::uint32_t pool, Bytes size) const {
  const FreeList& list = pools_[pool].free;
  std::size_t slot = list.best_fit(size);
  if (slot == list.size()) return std::nullopt;
  if (options_.expandable_segments) {
    // A block at the growing end counts as large as it can become, so that it is used last.
    const auto size_when_grown = [&](std::size_t at) {
      const BlockId next = blocks_[list[at].block].next;
      return list[at].size + (has_state(next, State::kUnmapped) ? blocks_[next].size : 0);
    };
    while (slot + 1 < list.size() && size_when_grown(slot + 1) < size_when_grown(slot)) ++slot;
  }
  // Oversize blocks serve oversize requests only, and only those of nearly their size.
  const Bytes found = list[slot].size;
  if (size < options_.max_split_bytes && found >= options_.max_split_bytes) return std::nullopt;
  if (size >= options_.max_split_bytes && found >= size + kLargeSegment) return std::nullopt;
  return slot;
}

/// A free block that is in no list, from the device, giving back cached memory when there is no
/// other.
CachingAllocator::BlockId CachingAllocator::obtain(std::uint32_t pool, Bytes size) {
  BlockId id = allocate_from_device(pool, size);
  if (id == kNone && release_oversize(pool, size)) id = allocate_from_device(pool, size);
  if (id == kNone) {
    release_cached_blocks();
    ++stats_.num_alloc_retries;
    id = allocate_from_device(pool, size);
  }
  return id;
}

CachingAllocator::BlockId CachingAllocator::allocate_from_device(std::uint32_t pool, Bytes size) {
  if (options_.expandable_segments) return grow_expandable(pool, size);
  const Bytes segment = segment_size(size);
  if (stats_.reserved.now + segment > options_.limit_bytes) return kNone;
  reserve(segment);
  const Bytes address = next_address_;
  next_address_ += segment;
  return new_block(pool, address, segment, State::kFree);
}

void CachingAllocator::reserve(Bytes bytes) {
  raise(stats_.reserved, bytes);
  ++stats_.num_device_allocs;
}

// Freeing.

void CachingAllocator::free(BlockId id, std::span<const StreamUse> uses) {
  if (id == kEmptyBlock) return;
  SHARDWRIGHT_CHECK(id < blocks_.size() && blocks_[id].state == State::kAllocated,
                    "block {} is freed but not allocated", id);
  Block& block = blocks_[id];
  block.state = State::kAwaitingEvents;
  stats_.allocated.now -= block.size;
  for (const StreamUse& use : uses) {
    if (use.stream == static_cast<int>(block.pool / 2)) continue;
    ensure_stream(use.stream);
    SHARDWRIGHT_CHECK(block.event_count < std::numeric_limits<std::uint16_t>::max(),
                      "too many uses of block {}", id);
    events_[static_cast<std::size_t>(use.stream)].events.push_back({use.done_at, id});
    ++block.event_count;
    ++num_events_;
  }
  if (block.event_count == 0) finish_free(id);
}

void CachingAllocator::finish_free(BlockId id) {
  stats_.active.now -= blocks_[id].size;
  put_back(id);
}

/// Merges the block with its free neighbours and lists the result.
void CachingAllocator::put_back(BlockId id) {
  FreeList& list = pools_[blocks_[id].pool].free;
  blocks_[id].state = State::kFree;
  std::optional<std::size_t> slot;
  if (const BlockId prev = blocks_[id].prev; has_state(prev, State::kFree)) {
    slot = list.find(entry(prev));
    absorb(id, prev);
  }
  if (const BlockId next = blocks_[id].next; has_state(next, State::kFree)) {
    const std::size_t next_slot = list.find(entry(next));
    absorb(id, next);
    if (slot) {
      list.erase_at(next_slot);
      if (next_slot < *slot) --*slot;
    } else {
      slot = next_slot;
    }
  }
  if (slot) {
    list.replace_at(*slot, entry(id));
  } else {
    list.insert(entry(id));
  }
}

/// What the allocator sees when it polls: events in order of recording, up to the first that is
/// open.
void CachingAllocator::process_events(Nanoseconds host_now) {
  for (EventQueue& queue : events_) {
    while (queue.head < queue.events.size() && queue.events[queue.head].done_at <= host_now) {
      const BlockId id = queue.events[queue.head].block;
      ++queue.head;
      --num_events_;
      if (--blocks_[id].event_count == 0) finish_free(id);
    }
    // Half of the array is done: move the rest down, at a constant cost per event.
    if (queue.head > 0 && 2 * queue.head >= queue.events.size()) {
      queue.events.erase(queue.events.begin(),
                         queue.events.begin() + static_cast<std::ptrdiff_t>(queue.head));
      queue.head = 0;
    }
  }
}

void CachingAllocator::synchronize_events() {
  for (const EventQueue& queue : events_) {
    for (std::size_t at = queue.head; at < queue.events.size(); ++at) {
      stats_.synchronized_until_ns =
          std::max(stats_.synchronized_until_ns, queue.events[at].done_at);
    }
  }
  process_events(std::numeric_limits<Nanoseconds>::max());
}

// Giving memory back to the device.

void CachingAllocator::empty_cache() {
  release_cached_blocks();
}

void CachingAllocator::release_segment(BlockId id) {
  stats_.reserved.now -= blocks_[id].size;
  ++stats_.num_device_frees;
  drop_block(id);
}

/// With a max_split_size: gives back oversize blocks of this stream, just enough for `size`. False
/// when they do not suffice (those that were given back stay so).
bool CachingAllocator::release_oversize(std::uint32_t pool, Bytes size) {
  if (options_.max_split_bytes == AllocatorOptions::kUnlimited || options_.expandable_segments) {
    return false;
  }
  FreeList& list = pools_[pool].free;
  const Bytes target = std::max(size, options_.max_split_bytes);
  if (const std::size_t slot = list.best_fit(target); slot < list.size()) {
    release_segment(list[slot].block);
    list.erase_at(slot);
    return true;
  }
  Bytes released = 0;
  while (released < target && list.size() > 0) {
    const std::size_t last = list.size() - 1;
    if (list[last].size < options_.max_split_bytes) break;
    released += list[last].size;
    release_segment(list[last].block);
    list.erase_at(last);
  }
  return released >= target;
}

void CachingAllocator::release_cached_blocks() {
  synchronize_events();
  for (std::uint32_t pool = 0; pool < pools_.size(); ++pool) {
    if (options_.expandable_segments) {
      release_expandable(pool);
      continue;
    }
    pools_[pool].free.erase_if([this](const FreeList::Entry& listed) {
      const Block& block = blocks_[listed.block];
      if (block.prev != kNone || block.next != kNone) return false;
      release_segment(listed.block);
      return true;
    });
  }
}

// The expandable segments of the simulated caching allocator (expandable_segments:True).
//
// A segment is a stretch of addresses as large as the device and an eighth more, of which pages are
// mapped as they are needed. Blocks tile it from end to end: allocated, awaiting events, free, or
// unmapped (whole pages). Free blocks merge with free, unmapped ones with unmapped.

/// A free block of at least `size` bytes in no list; kNone when the device has no memory left.
CachingAllocator::BlockId CachingAllocator::grow_expandable(std::uint32_t pool, Bytes size) {
  BlockId id = find_expandable(pool, size);
  if (blocks_[id].state == State::kUnmapped && !map_front(id, std::min(blocks_[id].size, size))) {
    return kNone;
  }
  while (blocks_[id].size < size) {
    // What follows a free block that is too small is unmapped: the next round takes it in.
    const BlockId next = blocks_[id].next;
    SHARDWRIGHT_CHECK(has_state(next, State::kUnmapped), "block {} cannot grow", id);
    if (!map_front(next, std::min(size - blocks_[id].size, blocks_[next].size))) return kNone;
    id = next;  // which has taken in its neighbours
  }
  FreeList& list = pools_[pool].free;
  list.erase_at(list.find(entry(id)));
  return id;
}

/// Where free and unmapped blocks in a row give `size` bytes: the lowest address, else a new
/// segment.
CachingAllocator::BlockId CachingAllocator::find_expandable(std::uint32_t pool, Bytes size) {
  const auto usable = [this](BlockId id) {
    return has_state(id, State::kFree) || has_state(id, State::kUnmapped);
  };
  for (const BlockId unmapped : pools_[pool].unmapped) {
    const BlockId start = usable(blocks_[unmapped].prev) ? blocks_[unmapped].prev : unmapped;
    Bytes room = 0;
    for (BlockId id = start; room < size && usable(id); id = blocks_[id].next) {
      room += blocks_[id].size;
    }
    if (room >= size) return start;
  }
  // An eighth more than the device has: room to map at the end what was unmapped in the middle.
  const Bytes page = page_size(pool);
  const Bytes wanted = std::max(options_.limit_bytes + options_.limit_bytes / 8, page);
  const Bytes address = round_up(next_address_, page_size(0));  // a multiple of both page sizes
  const BlockId id = new_block(pool, address, round_up(wanted, page), State::kUnmapped);
  next_address_ = address + blocks_[id].size;
  list_unmapped(id);
  return id;
}

/// Maps the pages of an unmapped block that its first `size` bytes need, and lists them as free,
/// merged with their free neighbours. False, and nothing changed, when that would pass the limit.
bool CachingAllocator::map_front(BlockId id, Bytes size) {
  const Bytes mapped = round_up(size, page_size(blocks_[id].pool));
  if (stats_.reserved.now + mapped > options_.limit_bytes) return false;
  unlist_unmapped(id);
  if (mapped < blocks_[id].size) {
    const BlockId rest = new_block(blocks_[id].pool, blocks_[id].address + mapped,
                                   blocks_[id].size - mapped, State::kUnmapped);
    blocks_[rest].prev = id;
    blocks_[rest].next = blocks_[id].next;
    if (blocks_[id].next != kNone) blocks_[blocks_[id].next].prev = rest;
    blocks_[id].next = rest;
    blocks_[id].size = mapped;
    list_unmapped(rest);
  }
  put_back(id);
  reserve(mapped);
  return true;
}

/// Unmaps the pages that lie wholly in a free block; what is left at either end stays free.
void CachingAllocator::unmap_pages(BlockId id) {
  const std::uint32_t pool = blocks_[id].pool;
  const Bytes page = page_size(pool);
  const Bytes begin = round_up(blocks_[id].address, page);
  const Bytes end = (blocks_[id].address + blocks_[id].size) / page * page;
  if (begin >= end) return;
  FreeList& list = pools_[pool].free;
  list.erase_at(list.find(entry(id)));

  if (const Bytes before = begin - blocks_[id].address; before > 0) {
    list.insert(entry(split_front(id, before)));
  }
  BlockId unmapped = id;
  if (end < blocks_[id].address + blocks_[id].size) {
    unmapped = split_front(id, end - begin);
    list.insert(entry(id));
  }
  blocks_[unmapped].state = State::kUnmapped;
  stats_.reserved.now -= end - begin;
  ++stats_.num_device_frees;
  for (const BlockId neighbour : {blocks_[unmapped].prev, blocks_[unmapped].next}) {
    if (!has_state(neighbour, State::kUnmapped)) continue;
    unlist_unmapped(neighbour);
    absorb(unmapped, neighbour);
  }
  const Block& block = blocks_[unmapped];
  if (block.prev == kNone && block.next == kNone) {
    drop_block(unmapped);  // the whole segment
  } else {
    list_unmapped(unmapped);
  }
}

void CachingAllocator::release_expandable(std::uint32_t pool) {
  const FreeList& list = pools_[pool].free;
  std::vector<BlockId> cached;
  for (std::size_t slot = 0; slot < list.size(); ++slot) cached.push_back(list[slot].block);
  for (const BlockId id : cached) unmap_pages(id);
}

void CachingAllocator::list_unmapped(BlockId id) {
  std::vector<BlockId>& unmapped = pools_[blocks_[id].pool].unmapped;
  const auto above = std::find_if(unmapped.begin(), unmapped.end(), [&](BlockId other) {
    return blocks_[other].address > blocks_[id].address;
  });
  unmapped.insert(above, id);
}

void CachingAllocator::unlist_unmapped(BlockId id) {
  std::erase(pools_[blocks_[id].pool].unmapped, id);
}

}  // namespace shardwright::sim
