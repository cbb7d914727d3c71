// SPDX-License-Identifier: Apache-2.0
// The slow, obvious version of sim/memory/allocator.h, written from the rules and not from that
// code.
//
// Memory is a list of segments, each a list of pieces from left to right. Every question is
// answered by looking at all pieces, neighbours are merged by going over everything after every
// step, and the gauges are summed anew. No lists of free blocks, no incremental counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/memory/allocator.h"

namespace shardwright::sim {

class ReferenceAllocator {
 public:
  using Handle = std::int64_t;
  static constexpr Bytes kMi = Bytes{1} << 20;

  explicit ReferenceAllocator(AllocatorOptions options) : options_(options) {}

  std::optional<Handle> allocate(Bytes size, int stream, Nanoseconds now) {
    poll(now);
    size = (size + 511) / 512 * 512;
    const bool small = size <= kMi;
    std::optional<Place> place = best_fit(size, stream, small);
    if (!place) place = from_device(size, stream, small);
    if (!place && options_.max_split_bytes < AllocatorOptions::kUnlimited &&
        !options_.expandable_segments && release_oversize(size, stream, small)) {
      place = from_device(size, stream, small);
    }
    if (!place) {
      poll(std::numeric_limits<Nanoseconds>::max());
      release_unused();
      ++retries;
      place = from_device(size, stream, small);
    }
    if (!place) {
      ++ooms;
      return std::nullopt;
    }
    std::vector<Piece>& pieces = segments_[place->segment].pieces;
    const Bytes rest = pieces[place->piece].size - size;
    const bool split = small || options_.expandable_segments
                           ? rest >= 512
                           : rest > kMi && size < options_.max_split_bytes;
    if (split) {
      pieces[place->piece].size = size;
      pieces.insert(at(pieces, place->piece + 1), Piece{rest, kFree, 0});
    }
    const Handle handle = ++last_handle_;
    pieces[place->piece].state = kAllocated;
    pieces[place->piece].handle = handle;
    measure();
    return handle;
  }

  void free(Handle handle, const std::vector<CachingAllocator::StreamUse>& uses) {
    const Place place = find(handle);
    segments_[place.segment].pieces[place.piece].state = kWaiting;
    for (const auto& use : uses) {
      if (use.stream != segments_[place.segment].stream) {
        events_[use.stream].push_back({use.done_at, handle});
      }
    }
    settle();
    measure();
  }

  void empty_cache() {
    poll(std::numeric_limits<Nanoseconds>::max());
    release_unused();
    measure();
  }

  /// Address and size of what a handle names.
  std::pair<Bytes, Bytes> where(Handle handle) const {
    const Place place = find(handle);
    const Segment& segment = segments_[place.segment];
    return {address(segment, place.piece), segment.pieces[place.piece].size};
  }

  AllocatorStats::Gauge allocated, active, reserved;
  std::int64_t retries = 0;
  std::int64_t ooms = 0;

 private:
  enum State { kAllocated, kWaiting, kFree, kUnmapped };
  struct Piece {
    Bytes size;
    State state;
    Handle handle;
  };
  struct Segment {
    int stream;
    bool small;
    Bytes base;
    std::vector<Piece> pieces;
  };
  struct Place {
    std::size_t segment;
    std::size_t piece;
  };
  struct Event {
    Nanoseconds done_at;
    Handle handle;
  };

  template <typename T>
  static typename std::vector<T>::iterator at(std::vector<T>& items, std::size_t index) {
    return items.begin() + static_cast<std::ptrdiff_t>(index);
  }

  static Bytes page(const Segment& segment) { return segment.small ? 2 * kMi : 20 * kMi; }

  static Bytes address(const Segment& segment, std::size_t piece) {
    Bytes result = segment.base;
    for (std::size_t i = 0; i < piece; ++i) result += segment.pieces[i].size;
    return result;
  }

  Place find(Handle handle) const {
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      for (std::size_t p = 0; p < segments_[s].pieces.size(); ++p) {
        const Piece& piece = segments_[s].pieces[p];
        if (piece.handle == handle && (piece.state == kAllocated || piece.state == kWaiting)) {
          return {s, p};
        }
      }
    }
    std::abort();
  }

  /// All free pieces of a stream and pool, smallest first, lowest address first among equals.
  std::vector<Place> free_pieces(int stream, bool small) const {
    std::vector<std::tuple<Bytes, Bytes, std::size_t, std::size_t>> found;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const Segment& segment = segments_[s];
      if (segment.stream != stream || segment.small != small) continue;
      for (std::size_t p = 0; p < segment.pieces.size(); ++p) {
        if (segment.pieces[p].state == kFree) {
          found.emplace_back(segment.pieces[p].size, address(segment, p), s, p);
        }
      }
    }
    std::sort(found.begin(), found.end());
    std::vector<Place> result;
    for (const auto& [size, address, s, p] : found) result.push_back({s, p});
    return result;
  }

  Bytes size_of(const Place& place) const {
    return segments_[place.segment].pieces[place.piece].size;
  }

  std::optional<Place> best_fit(Bytes size, int stream, bool small) const {
    std::vector<Place> fitting = free_pieces(stream, small);
    std::erase_if(fitting, [&](const Place& place) { return size_of(place) < size; });
    if (fitting.empty()) return std::nullopt;
    std::size_t chosen = 0;
    if (options_.expandable_segments) {
      const auto grown = [&](const Place& place) {
        const std::vector<Piece>& pieces = segments_[place.segment].pieces;
        const bool can_grow =
            place.piece + 1 < pieces.size() && pieces[place.piece + 1].state == kUnmapped;
        return size_of(place) + (can_grow ? pieces[place.piece + 1].size : 0);
      };
      while (chosen + 1 < fitting.size() && grown(fitting[chosen + 1]) < grown(fitting[chosen])) {
        ++chosen;
      }
    }
    const Bytes found = size_of(fitting[chosen]);
    const Bytes oversize = options_.max_split_bytes;
    if (size < oversize ? found >= oversize : found >= size + 20 * kMi) return std::nullopt;
    return fitting[chosen];
  }

  std::optional<Place> from_device(Bytes size, int stream, bool small) {
    if (options_.expandable_segments) return grow(size, stream, small);
    const Bytes bytes = small             ? 2 * kMi
                        : size < 10 * kMi ? 20 * kMi
                                          : (size + 2 * kMi - 1) / (2 * kMi) * (2 * kMi);
    if (reserved.now + bytes > options_.limit_bytes) return std::nullopt;
    segments_.push_back({stream, small, next_base_, {{bytes, kFree, 0}}});
    next_base_ += bytes;
    measure();
    return Place{segments_.size() - 1, 0};
  }

  /// Where pieces that are free or unmapped give enough room in a row, pages are mapped one gap at
  /// a time.
  std::optional<Place> grow(Bytes size, int stream, bool small) {
    std::vector<std::pair<Bytes, std::size_t>> order;
    for (std::size_t s = 0; s < segments_.size(); ++s) order.emplace_back(segments_[s].base, s);
    std::sort(order.begin(), order.end());
    for (const auto& [base, s] : order) {
      const Segment& segment = segments_[s];
      if (segment.stream != stream || segment.small != small) continue;
      for (std::size_t first = 0; first < segment.pieces.size(); ++first) {
        Bytes room = 0;
        bool has_unmapped_near = segment.pieces[first].state == kUnmapped;
        if (segment.pieces[first].state == kFree && first + 1 < segment.pieces.size()) {
          has_unmapped_near = segment.pieces[first + 1].state == kUnmapped;
        }
        for (std::size_t p = first; p < segment.pieces.size(); ++p) {
          const State state = segment.pieces[p].state;
          if (state != kFree && state != kUnmapped) break;
          room += segment.pieces[p].size;
        }
        if (has_unmapped_near && room >= size) return map(s, address(segment, first), size);
      }
    }
    const Bytes unit = small ? 2 * kMi : 20 * kMi;
    const Bytes bytes =
        (std::max(options_.limit_bytes + options_.limit_bytes / 8, unit) + unit - 1) / unit * unit;
    next_base_ = (next_base_ + 20 * kMi - 1) / (20 * kMi) * (20 * kMi);
    segments_.push_back({stream, small, next_base_, {{bytes, kUnmapped, 0}}});
    next_base_ += bytes;
    return map(segments_.size() - 1, segments_.back().base, size);
  }

  /// Makes [start, start + size) mapped; start is where a free or unmapped piece begins.
  std::optional<Place> map(std::size_t s, Bytes start, Bytes size) {
    while (true) {
      Segment& segment = segments_[s];
      std::size_t p = 0;
      while (address(segment, p) != start) ++p;
      Bytes have = 0;
      if (segment.pieces[p].state == kFree) {
        have = segment.pieces[p].size;
        if (have >= size) return Place{s, p};
        ++p;
      }
      const Bytes unit = page(segment);
      const Bytes wanted = std::min(size - have, segment.pieces[p].size);
      const Bytes bytes = (wanted + unit - 1) / unit * unit;
      if (reserved.now + bytes > options_.limit_bytes) return std::nullopt;
      const Bytes rest = segment.pieces[p].size - bytes;
      segment.pieces[p] = {bytes, kFree, 0};
      if (rest > 0) segment.pieces.insert(at(segment.pieces, p + 1), {rest, kUnmapped, 0});
      settle();
      measure();
    }
  }

  bool release_oversize(Bytes size, int stream, bool small) {
    const Bytes target = std::max(size, options_.max_split_bytes);
    std::vector<Place> cached = free_pieces(stream, small);
    const auto enough = std::find_if(cached.begin(), cached.end(),
                                     [&](const Place& p) { return size_of(p) >= target; });
    std::vector<std::size_t> gone;
    Bytes released = 0;
    if (enough != cached.end()) {
      gone.push_back(enough->segment);
      released = target;
    } else {
      for (auto place = cached.rbegin(); place != cached.rend() && released < target; ++place) {
        if (size_of(*place) < options_.max_split_bytes) break;
        released += size_of(*place);
        gone.push_back(place->segment);
      }
    }
    std::sort(gone.rbegin(), gone.rend());
    for (const std::size_t s : gone) segments_.erase(at(segments_, s));
    measure();
    return released >= target;
  }

  void release_unused() {
    for (Segment& segment : segments_) {
      if (!options_.expandable_segments) continue;
      // Pages that lie wholly in one free piece go; the ends of the piece stay.
      std::vector<Piece> pieces;
      Bytes begin = segment.base;
      for (const Piece& piece : segment.pieces) {
        const Bytes end = begin + piece.size;
        const Bytes first = (begin + page(segment) - 1) / page(segment) * page(segment);
        const Bytes last = end / page(segment) * page(segment);
        if (piece.state == kFree && first < last) {
          pieces.push_back({first - begin, kFree, 0});
          pieces.push_back({last - first, kUnmapped, 0});
          pieces.push_back({end - last, kFree, 0});
        } else {
          pieces.push_back(piece);
        }
        begin = end;
      }
      std::erase_if(pieces, [](const Piece& piece) { return piece.size == 0; });
      segment.pieces = pieces;
    }
    settle();
    std::erase_if(segments_, [](const Segment& segment) {
      const State state = segment.pieces[0].state;
      return segment.pieces.size() == 1 && (state == kFree || state == kUnmapped);
    });
    measure();
  }

  void poll(Nanoseconds now) {
    for (auto& [stream, events] : events_) {
      while (!events.empty() && events.front().done_at <= now) events.erase(events.begin());
    }
    settle();
    measure();
  }

  /// Waiting pieces without open events become free; free merges with free, unmapped with unmapped.
  void settle() {
    for (Segment& segment : segments_) {
      for (Piece& piece : segment.pieces) {
        if (piece.state != kWaiting) continue;
        const bool open = std::any_of(events_.begin(), events_.end(), [&](const auto& stream) {
          return std::any_of(stream.second.begin(), stream.second.end(),
                             [&](const Event& event) { return event.handle == piece.handle; });
        });
        if (!open) piece.state = kFree;
      }
      for (std::size_t p = 0; p + 1 < segment.pieces.size();) {
        Piece& left = segment.pieces[p];
        const Piece& right = segment.pieces[p + 1];
        if (left.state == right.state && (left.state == kFree || left.state == kUnmapped)) {
          left.size += right.size;
          segment.pieces.erase(at(segment.pieces, p + 1));
        } else {
          ++p;
        }
      }
    }
  }

  void measure() {
    allocated.now = active.now = reserved.now = 0;
    for (const Segment& segment : segments_) {
      for (const Piece& piece : segment.pieces) {
        if (piece.state == kAllocated) allocated.now += piece.size;
        if (piece.state == kAllocated || piece.state == kWaiting) active.now += piece.size;
        if (piece.state != kUnmapped) reserved.now += piece.size;
      }
    }
    for (AllocatorStats::Gauge* gauge : {&allocated, &active, &reserved}) {
      gauge->peak = std::max(gauge->peak, gauge->now);
    }
  }

  AllocatorOptions options_;
  std::vector<Segment> segments_;
  std::map<int, std::vector<Event>> events_;
  Handle last_handle_ = 0;
  Bytes next_base_ = 0;
};

}  // namespace shardwright::sim
