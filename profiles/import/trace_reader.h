// SPDX-License-Identifier: Apache-2.0
// Reads the Chrome trace format event by event, in bounded memory, however large the file is.
//
// A window slides over the stream; an event is split into its members where it lies, so that no
// member is copied. Nothing is asked of values beyond their extent: a trace whose strings hold
// stray control characters or bad escapes, which profilers do write, is read all the same. A file
// that ends in the middle of an event gives the events before it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "profiles/import/byte_stream.h"
#include "sim/core/units.h"

namespace shardwright::profiles {

/// A member of a JSON object. `value` is its text as it stands in the file, of strings without the
/// quotes (escapes stay).
struct JsonMember {
  std::string_view key;
  std::string_view value;
  bool quoted = false;
};

/// Members of one object in the order of the file; valid until the next event is read.
class JsonMembers {
 public:
  std::vector<JsonMember> all;

  const JsonMember* find(std::string_view key) const {
    for (const JsonMember& member : all) {
      if (member.key == key) return &member;
    }
    return nullptr;
  }
  /// The text of `key`, empty when it is not there.
  std::string_view text(std::string_view key) const {
    const JsonMember* member = find(key);
    return member != nullptr ? member->value : std::string_view{};
  }
};

/// Splits the JSON object that `text` is. False when it is not one.
bool split_object(std::string_view text, JsonMembers& members);

class TraceReader {
 public:
  explicit TraceReader(ByteStream& stream, std::size_t window_bytes = std::size_t{4} << 20);

  /// What next() has found: an event, or a member of the document beside "traceEvents".
  enum class Item { kEvent, kHeader, kEnd };
  Item next();

  const JsonMembers& event() const { return event_; }
  /// The object "args" of the event, split; empty when there is none.
  const JsonMembers& args() const { return args_; }
  const JsonMember& header() const { return header_; }

  /// Bytes read up to the end of the last item.
  std::int64_t position() const { return base_ + static_cast<std::int64_t>(at_); }
  /// The file ended before the document did.
  bool truncated() const { return truncated_; }
  /// Where the text stopped being JSON, as a sentence; empty when it did not.
  const std::string& problem() const { return problem_; }
  /// Members and elements that were passed over: larger than the window, or no objects.
  std::int64_t skipped() const { return skipped_; }

 private:
  enum class Where { kStart, kDocument, kEvents, kDone };

  bool refill();
  /// One event fills all that may be read at a time.
  bool is_full() const { return at_ == 0 && end_ == most_window_bytes_; }
  std::optional<char> peek();
  bool expect(char wanted);
  void stop(const std::string& expected);
  Item next_event();
  Item next_header();
  bool take_value(std::string_view& text, bool& quoted);
  bool skip_large();
  void end_of_events();

  ByteStream& stream_;
  std::size_t most_window_bytes_;
  std::vector<char> window_;
  std::size_t at_ = 0, end_ = 0;
  std::int64_t base_ = 0;  // position in the file of window_[0]
  Where where_ = Where::kStart;
  bool bare_array_ = false;
  bool first_ = true;  // of the current object or array
  bool truncated_ = false;
  std::string problem_;
  std::int64_t skipped_ = 0;
  JsonMembers event_, args_;
  JsonMember header_;
  std::string header_key_;
};

// Numbers as traces hold them: plain or quoted, times in microseconds with decimals.

/// Microseconds in decimal notation to nanoseconds, exactly: time stamps since 1970 with three
/// decimals are more than a double holds. None for text that is no number or overflows.
std::optional<Nanoseconds> microseconds_to_ns(std::string_view text);

/// An integer; fractions are rounded. None for text that is no number or overflows.
std::optional<std::int64_t> integer_of(std::string_view text);

}  // namespace shardwright::profiles
