// SPDX-License-Identifier: Apache-2.0
// PyTorch's CUDA caching allocator, simulated: what torch.cuda.max_memory_allocated,
// max_memory_active and max_memory_reserved would say, and how often it would run dry, for a
// sequence of allocations.
//
// Follows c10/cuda/CUDACachingAllocator.cpp of PyTorch (release 2.x). Sizes are rounded to 512 B;
// up to 1 MiB comes from 2 MiB segments, below 10 MiB from 20 MiB segments, the rest from its own
// segment in steps of 2 MiB. Each stream has its own free blocks; the smallest that fits is split
// and neighbours are merged again when freed. A block that other streams used returns only once a
// later allocation finds their events complete, which is why reserved memory depends on how far the
// host runs ahead. When a new segment would pass the limit, everything cached is given back and the
// allocation tried again.
//
// Purely arithmetic and deterministic: the caller says what time it is. Recordings of PyTorch's own
// library agree to the byte (scripts/allocator_golden). Left out: CUDA graph pools,
// garbage_collection_threshold, roundup_power2_divisions and memory that is freed by callbacks. New
// segments get rising addresses, the driver's own order is not known; it decides only between free
// blocks of equal size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/core/base/check.h"
#include "sim/core/units.h"

namespace shardwright::sim {

// The free blocks of one stream and pool, ordered by size and then by address, for best fit.
//
// A sorted array: pools hold tens of free blocks, where moving a few cache lines beats any tree,
// and nothing is allocated per operation. replace_at() is the operation that matters: a split
// shrinks and a merge grows a block that is already listed, so most calls move one entry past a few
// others.

class FreeList {
 public:
  struct Entry {
    Bytes size;
    Bytes address;
    std::uint32_t block;
  };

  std::size_t size() const { return entries_.size(); }
  const Entry& operator[](std::size_t slot) const { return entries_[slot]; }
  void clear() { entries_.clear(); }

  /// First slot whose block is at least `size` large; size() when there is none.
  std::size_t best_fit(Bytes size) const { return position({size, 0, 0}, 0, entries_.size()); }

  /// The slot of an entry that is listed.
  std::size_t find(const Entry& entry) const {
    const std::size_t slot = position(entry, 0, entries_.size());
    SHARDWRIGHT_CHECK(slot < entries_.size() && entries_[slot].block == entry.block,
                      "block {} is not in its free list", entry.block);
    return slot;
  }

  void insert(const Entry& entry) {
    const std::size_t slot = position(entry, 0, entries_.size());
    entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(slot), entry);
  }

  void erase_at(std::size_t slot) {
    entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(slot));
  }

  /// erase_at(slot) and insert(entry) in one move.
  void replace_at(std::size_t slot, const Entry& entry) {
    const auto at = entries_.begin() + static_cast<std::ptrdiff_t>(slot);
    if (less(entry, *at)) {
      const auto target = entries_.begin() + static_cast<std::ptrdiff_t>(position(entry, 0, slot));
      std::move_backward(target, at, at + 1);
      *target = entry;
    } else {
      const auto target = entries_.begin() +
                          static_cast<std::ptrdiff_t>(position(entry, slot + 1, entries_.size()));
      std::move(at + 1, target, at);
      *(target - 1) = entry;
    }
  }

  /// Drops the entries for which `gone(entry)` is true; the others keep their order.
  template <typename Predicate>
  void erase_if(Predicate gone) {
    std::erase_if(entries_, gone);
  }

 private:
  static bool less(const Entry& a, const Entry& b) {
    return a.size != b.size ? a.size < b.size : a.address < b.address;
  }

  std::size_t position(const Entry& entry, std::size_t begin, std::size_t end) const {
    const auto first = entries_.begin();
    return static_cast<std::size_t>(std::lower_bound(first + static_cast<std::ptrdiff_t>(begin),
                                                     first + static_cast<std::ptrdiff_t>(end),
                                                     entry, less) -
                                    first);
  }

  std::vector<Entry> entries_;
};

struct AllocatorOptions {
  static constexpr Bytes kUnlimited = Bytes{1} << 50;

  /// The most that may be reserved: the device's memory without contexts, libraries and NCCL.
  Bytes limit_bytes = kUnlimited;
  /// max_split_size_mb in bytes: blocks of at least this size are neither split nor given to
  /// smaller requests.
  Bytes max_split_bytes = kUnlimited;
  /// expandable_segments:True: one growing segment per stream and pool, mapped in pages of 2 or 20
  /// MiB.
  bool expandable_segments = false;
};

struct AllocatorStats {
  struct Gauge {
    Bytes now = 0;
    Bytes peak = 0;
  };
  Gauge allocated;  // handed out and not freed
  Gauge active;     // allocated, or freed and waiting for events of other streams
  Gauge reserved;   // taken from the device

  std::int64_t num_alloc_retries = 0;  // times the whole cache was given back for want of memory
  std::int64_t num_ooms = 0;           // allocations that failed
  std::int64_t num_device_allocs = 0;  // cudaMalloc, or mappings of an expandable segment
  std::int64_t num_device_frees = 0;   // cudaFree, or unmappings
  /// Latest completion among the events that giving back the cache has waited for: the host cannot
  /// have gone on before this time.
  Nanoseconds synchronized_until_ns = 0;
};

class CachingAllocator {
 public:
  using BlockId = std::uint32_t;
  /// What an allocation of no bytes gets: it occupies nothing, and freeing it does nothing.
  static constexpr BlockId kEmptyBlock = 0xFFFF'FFFF;

  /// Another stream than the block's own that used it (record_stream). PyTorch records the event
  /// when the block is freed, so `done_at` is when all that the host had queued on `stream` by then
  /// is complete.
  struct StreamUse {
    int stream;
    Nanoseconds done_at;
  };

  explicit CachingAllocator(AllocatorOptions options = {});

  /// A block of at least `size` bytes for `stream` (small numbers from 0), at the host's time
  /// `host_now`, which must not decrease from call to call. None when the device has no memory
  /// left.
  std::optional<BlockId> allocate(Bytes size, int stream, Nanoseconds host_now);

  /// Gives a block back: reusable at once on its own stream.
  void free(BlockId block) { free(block, std::span<const StreamUse>()); }
  /// Gives a block back that other streams used too: reusable on its own stream once an allocation
  /// comes at or after every done_at. Uses on the block's own stream count for nothing.
  void free(BlockId block, std::span<const StreamUse> uses);
  void free(BlockId block, StreamUse use) { free(block, std::span(&use, 1)); }

  /// torch.cuda.empty_cache(): waits for all events, then gives back every segment that is wholly
  /// free.
  void empty_cache();

  const AllocatorStats& stats() const { return stats_; }
  /// Back to the state after construction, keeping the simulation's own memory for the next run.
  void clear();

  /// Bytes that the block occupies after rounding, and its simulated address.
  Bytes block_size(BlockId block) const { return block == kEmptyBlock ? 0 : blocks_[block].size; }
  Bytes block_address(BlockId block) const {
    return block == kEmptyBlock ? 0 : blocks_[block].address;
  }

 private:
  static constexpr BlockId kNone = kEmptyBlock;
  enum class State : std::uint8_t { kUnused, kAllocated, kAwaitingEvents, kFree, kUnmapped };

  struct Block {
    Bytes size = 0;
    Bytes address = 0;
    BlockId prev = kNone;  // neighbours in the same segment
    BlockId next = kNone;  // of an unused block: the next unused one
    std::uint32_t pool = 0;
    std::uint16_t event_count = 0;
    State state = State::kUnused;
  };
  struct Pool {
    FreeList free;
    std::vector<BlockId> unmapped;  // by address; expandable segments only
  };
  struct Event {
    Nanoseconds done_at;
    BlockId block;
  };
  /// Events of one stream in the order they were recorded; those before `head` are done.
  struct EventQueue {
    std::vector<Event> events;
    std::size_t head = 0;
  };

  static bool is_small(std::uint32_t pool) { return (pool & 1) != 0; }
  static Bytes page_size(std::uint32_t pool);
  FreeList::Entry entry(BlockId block) const {
    return {blocks_[block].size, blocks_[block].address, block};
  }
  void ensure_stream(int stream);

  BlockId new_block(std::uint32_t pool, Bytes address, Bytes size, State state);
  void drop_block(BlockId block);
  BlockId split_front(BlockId block, Bytes size);
  void absorb(BlockId block, BlockId neighbour);
  bool has_state(BlockId block, State state) const {
    return block != kNone && blocks_[block].state == state;
  }
  bool should_split(const Block& block, Bytes size) const;

  std::optional<std::size_t> find_cached(std::uint32_t pool, Bytes size) const;
  BlockId obtain(std::uint32_t pool, Bytes size);
  BlockId allocate_from_device(std::uint32_t pool, Bytes size);
  void put_back(BlockId block);
  void finish_free(BlockId block);
  void process_events(Nanoseconds host_now);
  void synchronize_events();

  bool release_oversize(std::uint32_t pool, Bytes size);
  void release_cached_blocks();
  void release_segment(BlockId block);
  void reserve(Bytes bytes);

  // Expandable segments.
  BlockId grow_expandable(std::uint32_t pool, Bytes size);
  BlockId find_expandable(std::uint32_t pool, Bytes size);
  bool map_front(BlockId block, Bytes size);
  void unmap_pages(BlockId block);
  void release_expandable(std::uint32_t pool);
  void list_unmapped(BlockId block);
  void unlist_unmapped(BlockId block);

  AllocatorOptions options_;
  AllocatorStats stats_;
  std::vector<Block> blocks_;
  BlockId first_unused_ = kNone;
  std::vector<Pool> pools_;         // 2 * stream + (1 when small)
  std::vector<EventQueue> events_;  // by stream
  std::size_t num_events_ = 0;
  Bytes next_address_ = 0;
};

}  // namespace shardwright::sim
