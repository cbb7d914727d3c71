// SPDX-License-Identifier: Apache-2.0
#include "cli/memory/seen_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "cli/memory/pickle.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {
namespace {

constexpr std::size_t kMostSnapshotBytes = std::size_t{2} << 30;
constexpr std::size_t kSites = 8;
constexpr std::size_t kMostLooks = std::size_t{1} << 25;
// What a snapshot names takes more bytes than it is looked at: events twice, a stack once.
constexpr std::size_t kLooksAByte = 2, kLooksOfAnyFile = 4096;
constexpr std::size_t kLongestFrameName = 512;
constexpr std::size_t kMostLive = std::size_t{1} << 22;
constexpr Bytes kMostDeviceBytes = Bytes{1} << 50;

std::int64_t integer_of(const PickleValue& dict, std::string_view key) {
  const auto value = dict.find(key);
  return value ? value->integer().value_or(0) : 0;
}

/// Holds a snapshot to what one can be. Its lists may share what they hold, so that few bytes can
/// name very many blocks; what is looked at is bounded by the file's bytes.
class Bounds {
 public:
  Bounds(const std::string& name, std::size_t file_bytes)
      : name_(name), most_(std::min(kMostLooks, kLooksOfAnyFile + kLooksAByte * file_bytes)) {}

  /// Before each segment, block, event and frame.
  void look() {
    if (++looks_ > most_) {
      throw Error(
          fmt::format("{}: names more than {} segments, blocks, events and frames", name_, most_));
    }
  }
  void hold(std::size_t blocks) const {
    if (blocks > kMostLive)
      throw Error(fmt::format("{}: more than {} blocks are live", name_, kMostLive));
  }
  Bytes bytes_of(const PickleValue& dict, std::string_view key) const {
    const Bytes bytes = integer_of(dict, key);
    if (bytes < 0 || bytes > kMostDeviceBytes) {
      throw Error(
          fmt::format("{}: {} is {}, expected 0 to {} bytes", name_, key, bytes, kMostDeviceBytes));
    }
    return bytes;
  }
  /// `more` may be negative; a sum of 2^25 sizes would not be held by 64 bits.
  void add(Bytes& total, Bytes more) const {
    total += more;
    if (total > kMostDeviceBytes || total < -kMostDeviceBytes)
      throw Error(
          fmt::format("{}: its sizes add up to more than {} bytes", name_, kMostDeviceBytes));
  }

 private:
  const std::string& name_;
  std::size_t most_;
  std::size_t looks_ = 0;
};

std::string_view text_in(const PickleValue& dict, std::string_view key) {
  const auto value = dict.find(key);
  return value ? value->text().value_or("") : "";
}

/// The first frame in Python that is not PyTorch's own.
std::string first_site(const PickleValue& frames, Bounds& bounds) {
  std::string first;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    bounds.look();
    const PickleValue frame = frames.at(i);
    std::string_view file = text_in(frame, "filename");
    if (!file.ends_with(".py")) continue;
    file.remove_prefix(file.size() - std::min(file.size(), kLongestFrameName));
    const std::size_t slash = file.find_last_of('/');
    std::string where =
        fmt::format("{}:{} {}", file.substr(slash == file.npos ? 0 : slash + 1),
                    integer_of(frame, "line"), text_in(frame, "name").substr(0, kLongestFrameName));
    if (file.find("/torch/") == file.npos) return where;
    if (first.empty()) first = where;
  }
  return first.empty() ? "not recorded" : first;
}

/// Where blocks and events were; those of one place share their list of frames.
class Sites {
 public:
  explicit Sites(Bounds& bounds) : bounds_(bounds) {}
  const std::string& of(const PickleValue& event) {
    static const std::string kNotRecorded = "not recorded";
    const auto frames = event.find("frames");
    if (!frames || !frames->is_list()) return kNotRecorded;
    const auto known = by_frames_.find(frames->id());
    if (known != by_frames_.end()) return known->second;
    return by_frames_[frames->id()] = first_site(*frames, bounds_);
  }

 private:
  Bounds& bounds_;
  std::unordered_map<std::uint32_t, std::string> by_frames_;
};

struct Live {
  Bytes bytes = 0;
  std::string where;
};
using LiveBlocks = std::unordered_map<std::int64_t, Live>;

std::vector<AllocationSite> largest_of(const LiveBlocks& live) {
  std::map<std::string, Bytes> by_site;
  for (const auto& [address, block] : live) by_site[block.where] += block.bytes;
  std::vector<AllocationSite> sites;
  for (auto& [where, bytes] : by_site) sites.push_back({where, bytes});
  std::stable_sort(
      sites.begin(), sites.end(),
      [](const AllocationSite& a, const AllocationSite& b) { return a.bytes > b.bytes; });
  if (sites.size() > kSites) sites.resize(kSites);
  return sites;
}

/// What the allocator counts for what was asked for: whole blocks of 512 bytes.
Bytes rounded(Bytes asked) {
  constexpr Bytes kBlock = 512;
  return asked > std::numeric_limits<Bytes>::max() - kBlock
             ? asked
             : (asked + kBlock - 1) / kBlock * kBlock;
}

/// The recorded events, walked back from what is live at the end: before an allocation it was not
/// there, before a free it was.
void walk_back(const PickleValue& trace, const LiveBlocks& live, Bytes now, SeenMemory& seen,
               Bounds& bounds, Sites& sites) {
  Bytes peak = now;
  std::size_t peak_at = trace.size();
  for (const bool finds : {true, false}) {
    // Once for where the peak is, once to stop there: blocks are not copied at every new peak.
    LiveBlocks blocks = live;
    Bytes bytes = now;
    for (std::size_t i = trace.size(); i > (finds ? 0 : peak_at); --i) {
      bounds.look();
      const PickleValue event = trace.at(i - 1);
      const std::string_view action = text_in(event, "action");
      const std::int64_t address = integer_of(event, "addr");
      const Bytes asked = bounds.bytes_of(event, "size");
      const Bytes size = rounded(asked);
      if (action == "alloc") {
        bounds.add(bytes, -size);
        blocks.erase(address);
      } else if (action == "free_requested" || action == "free") {
        bounds.add(bytes, size);
        if (!finds) blocks[address] = {size, sites.of(event)};
        bounds.hold(blocks.size());
      } else if (action == "oom" && finds && !seen.refused) {
        seen.refused = asked;
        seen.free = bounds.bytes_of(event, "device_free");
      }
      if (finds && bytes > peak) {
        peak = bytes;
        peak_at = i - 1;
      }
    }
    if (!finds) seen.largest = largest_of(blocks);
  }
  seen.peak_allocated = peak;
}

/// "2.00 GiB" from `at` on.
std::optional<Bytes> bytes_at(std::string_view text, std::size_t at) {
  const std::size_t end = text.find_first_not_of("0123456789.", at);
  if (end == text.npos || end == at) return std::nullopt;
  const auto value = parse_double(text.substr(at, end - at));
  if (!value) return std::nullopt;
  const std::string_view unit = text.substr(end, 5);
  const double scale = unit.starts_with(" GiB")     ? 1024.0 * 1024 * 1024
                       : unit.starts_with(" MiB")   ? 1024.0 * 1024
                       : unit.starts_with(" KiB")   ? 1024.0
                       : unit.starts_with(" bytes") ? 1.0
                                                    : 0.0;
  if (scale == 0 || *value > 1e9) return std::nullopt;
  return static_cast<Bytes>(*value * scale);
}

/// The amounts of one message. What it says and cannot be read is an error, never taken as unsaid.
class Message {
 public:
  Message(std::string_view text, const std::string& name)
      : text_(text), line_(std::min(text.find('\n'), text.size())), name_(name) {}

  /// The amount behind the first of these words.
  std::optional<Bytes> behind(std::string_view words) const {
    const std::size_t at = text_.find(words);
    if (at == text_.npos) return std::nullopt;
    return read(at, at + words.size(), words.size() + kShown);
  }
  /// The amount in front of these words: "77.9 GiB memory in use".
  std::optional<Bytes> before(std::string_view words) const {
    const std::size_t at = text_.find(words);
    if (at == text_.npos || at == 0) return std::nullopt;
    const std::size_t unit = text_.rfind(' ', at - 1);
    const std::size_t end = unit == text_.npos || unit == 0 ? 0 : unit - 1;
    const std::size_t number = text_.find_last_of(" (,;", end);
    const std::size_t begin = number == text_.npos ? 0 : number + 1;
    return read(std::max(begin, kBefore) - kBefore, begin, at + words.size() - begin + kBefore);
  }

 private:
  static constexpr std::size_t kShown = 24, kBefore = 8;

  /// The amount at `at`; an error shows `shown` letters from `from` on. Lines after the message's
  /// are of somebody else.
  std::optional<Bytes> read(std::size_t from, std::size_t at, std::size_t shown) const {
    const std::optional<Bytes> amount = bytes_at(text_, at);
    if (amount || from >= line_) return amount;
    throw Error(
        fmt::format("{}: the out-of-memory message says '{}', expected an amount of memory "
                    "as in 2.50 GiB",
                    name_, text_.substr(from, std::min(shown, line_ - from))));
  }

  std::string_view text_;
  std::size_t line_;
  const std::string& name_;
};

}  // namespace

std::optional<Bytes> SeenMemory::needed() const {
  if (in_use) return *in_use + refused.value_or(0);
  if (capacity && free) return *capacity - *free + refused.value_or(0);
  if (reserved) return *reserved + refused.value_or(0);
  return std::nullopt;
}

SeenMemory read_snapshot(std::string bytes, const std::string& name) {
  const std::size_t file_bytes = bytes.size();
  const Pickle pickle = Pickle::parse(std::move(bytes), name);
  const PickleValue root = pickle.root();
  const auto segments = root.find("segments");
  if (!segments || !segments->is_list()) {
    throw Error(
        fmt::format("{}: has no segments, expected what torch.cuda.memory._dump_snapshot "
                    "writes",
                    name));
  }
  Bounds bounds(name, file_bytes);
  Sites sites(bounds);
  // The device that holds most.
  std::map<std::int64_t, Bytes> by_device;
  for (std::size_t i = 0; i < segments->size(); ++i) {
    bounds.look();
    const PickleValue segment = segments->at(i);
    bounds.add(by_device[integer_of(segment, "device")], bounds.bytes_of(segment, "total_size"));
  }
  std::int64_t device = 0;
  for (const auto& [id, size] : by_device) {
    if (size > by_device[device]) device = id;
  }
  SeenMemory seen;
  seen.source = "snapshot";
  seen.reserved = by_device[device];
  LiveBlocks live;
  Bytes allocated = 0;
  for (std::size_t i = 0; i < segments->size(); ++i) {
    const PickleValue segment = segments->at(i);
    if (integer_of(segment, "device") != device) continue;
    seen.expandable = seen.expandable || integer_of(segment, "is_expandable") != 0;
    const auto blocks = segment.find("blocks");
    if (!blocks || !blocks->is_list()) continue;
    auto address = static_cast<std::uint64_t>(integer_of(segment, "address"));
    for (std::size_t b = 0; b < blocks->size(); ++b) {
      bounds.look();
      const PickleValue block = blocks->at(b);
      const Bytes size = bounds.bytes_of(block, "size");
      // Older releases give blocks no address of their own.
      if (const auto own = block.find("address"); own && own->integer())
        address = static_cast<std::uint64_t>(*own->integer());
      if (text_in(block, "state") == "active_allocated") {
        bounds.add(allocated, size);
        live[static_cast<std::int64_t>(address)] = {size, sites.of(block)};
        bounds.hold(live.size());
      }
      address += static_cast<std::uint64_t>(size);
    }
  }
  seen.allocated = allocated;
  seen.peak_allocated = allocated;
  seen.largest = largest_of(live);
  const auto traces = root.find("device_traces");
  if (traces && traces->is_list() && device >= 0 &&
      static_cast<std::size_t>(device) < traces->size()) {
    const PickleValue trace = traces->at(static_cast<std::size_t>(device));
    if (trace.is_list()) walk_back(trace, live, allocated, seen, bounds, sites);
  }
  return seen;
}

std::optional<SeenMemory> find_message(std::string_view log, const std::string& name) {
  const std::size_t at = log.rfind("out of memory. Tried to allocate ");
  if (at == log.npos) return std::nullopt;
  const Message message(log.substr(at, 4096), name);
  SeenMemory seen;
  seen.source = "message";
  seen.refused = message.behind("Tried to allocate ");
  seen.capacity = message.behind("total capacity of ");                     // since PyTorch 2.1
  if (!seen.capacity) seen.capacity = message.behind("total capacty of ");  // as 2.1 spells it
  if (!seen.capacity) seen.capacity = message.before(" total capacity");
  if (seen.capacity == Bytes{0})
    throw Error(fmt::format("{}: the message has a total capacity of 0, expected a GPU's", name));
  seen.free = message.behind("of which ");
  if (!seen.free) seen.free = message.before(" free;");
  seen.in_use = message.behind("this process has ");
  seen.allocated = message.behind("Of the allocated memory ");
  if (!seen.allocated) seen.allocated = message.before(" already allocated");
  if (const auto unused = message.before(" is reserved by PyTorch but unallocated");
      unused && seen.allocated) {
    seen.reserved = *seen.allocated + *unused;
  } else {
    seen.reserved = message.before(" reserved in total by PyTorch");
  }
  seen.peak_allocated = seen.allocated;
  return seen;
}

SeenMemory read_seen_memory(const std::string& path) {
  std::string bytes = read_file(path, kMostSnapshotBytes);
  if (!bytes.empty() && bytes[0] == '\x80') return read_snapshot(std::move(bytes), path);
  std::optional<SeenMemory> seen = find_message(bytes, path);
  if (!seen) {
    throw Error(
        fmt::format("{}: is neither a snapshot of torch.cuda.memory._dump_snapshot nor a log "
                    "with the message of an OutOfMemoryError",
                    path));
  }
  return *std::move(seen);
}

}  // namespace shardwright::cli
