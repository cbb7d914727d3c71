// SPDX-License-Identifier: Apache-2.0
// The expandable segments of the simulated caching allocator (expandable_segments:True).
//
// A segment is a stretch of addresses as large as the device and an eighth more, of which pages are
// mapped as they are needed. Blocks tile it from end to end: allocated, awaiting events, free, or
// unmapped (whole pages). Free blocks merge with free, unmapped ones with unmapped.
#include <algorithm>

#include "sim/core/base/check.h"
#include "sim/memory/allocator.h"

namespace shardwright::sim {

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
