// SPDX-License-Identifier: Apache-2.0
#include "cli/memory/seen_memory.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/child.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {

const char* read_snapshot_script();  // read_snapshot.py, put into a file by CMake

namespace {

constexpr std::size_t kMostSnapshotBytes = std::size_t{2} << 30;

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

SeenMemory read_snapshot(std::string_view bytes, const std::string& name) {
#ifdef SHARDWRIGHT_HAS_PYTHON
  const PythonScript script{read_snapshot_script(), "a snapshot",
                            "a log with the message of an OutOfMemoryError", 300};
  const nlohmann::json said = ask_python(script, {}, bytes, name);
  const auto bytes_of = [&](const char* key) -> std::optional<Bytes> {
    return said.contains(key) ? std::optional(said.at(key).get<Bytes>()) : std::nullopt;
  };
  SeenMemory seen;
  seen.source = "snapshot";
  seen.allocated = bytes_of("allocated");
  seen.reserved = bytes_of("reserved");
  seen.peak_allocated = bytes_of("peak_allocated");
  seen.refused = bytes_of("refused");
  seen.free = bytes_of("free");
  seen.expandable = said.at("expandable").get<bool>();
  for (const nlohmann::json& site : said.at("largest"))
    seen.largest.push_back({site.at(0).get<std::string>(), site.at(1).get<Bytes>()});
  return seen;
#else
  throw Error(
      fmt::format("{}: this build starts no processes, and a snapshot of {} bytes is read by "
                  "Python; expected a log with the message of an OutOfMemoryError here, or "
                  "the installed program",
                  name, bytes.size()),
      ExitCode::kMissingDevice);
#endif
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
  const std::string bytes = read_file(path, kMostSnapshotBytes);
  if (!bytes.empty() && bytes[0] == '\x80') return read_snapshot(bytes, path);
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
