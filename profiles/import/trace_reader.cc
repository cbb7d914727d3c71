// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {

namespace {

// A window that small files do not fill; it grows with the events.
constexpr std::size_t kFirstWindowBytes = std::size_t{64} << 10;

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

enum class Scan { kOk, kMore, kBad };

/// `p` behind an opening quote; leaves it behind the closing one.
Scan scan_string(const char*& p, const char* end, std::string_view& text) {
  const char* const begin = p;
  for (const char* from = begin;;) {
    const auto left = static_cast<std::size_t>(end - from);
    const char* quote = static_cast<const char*>(std::memchr(from, '"', left));
    if (quote == nullptr) return Scan::kMore;
    const char* before = quote;
    while (before != begin && before[-1] == '\\') --before;
    if ((quote - before) % 2 == 0) {
      text = {begin, static_cast<std::size_t>(quote - begin)};
      p = quote + 1;
      return Scan::kOk;
    }
    from = quote + 1;
  }
}

/// The extent of the value at `p`, which is not white space.
Scan scan_value(const char*& p, const char* end, std::string_view& text, bool& quoted) {
  quoted = false;
  if (p == end) return Scan::kMore;
  const char* const begin = p;
  if (*p == '"') {
    quoted = true;
    ++p;
    return scan_string(p, end, text);
  }
  if (*p == '{' || *p == '[') {
    std::int64_t depth = 0;
    while (p != end) {
      const char c = *p++;
      if (c == '"') {
        std::string_view ignored;
        const Scan inner = scan_string(p, end, ignored);
        if (inner != Scan::kOk) return inner;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        text = {begin, static_cast<std::size_t>(p - begin)};
        return Scan::kOk;
      }
    }
    return Scan::kMore;
  }
  while (p != end && *p != ',' && *p != '}' && *p != ']' && !is_space(*p)) {
    const char c = *p;
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '-' || c == '+' || c == '.';
    if (!plain) return Scan::kBad;
    ++p;
  }
  if (p == end) return Scan::kMore;
  if (p == begin) return Scan::kBad;
  text = {begin, static_cast<std::size_t>(p - begin)};
  return Scan::kOk;
}

void skip_space(const char*& p, const char* end) {
  while (p != end && is_space(*p)) ++p;
}

/// The members of the object at `p`, which is '{'.
Scan scan_object(const char*& p, const char* end, std::vector<JsonMember>& members) {
  members.clear();
  ++p;
  for (bool first = true;; first = false) {
    skip_space(p, end);
    if (p == end) return Scan::kMore;
    if (*p == '}') {
      ++p;
      return Scan::kOk;
    }
    if (!first) {
      if (*p != ',') return Scan::kBad;
      ++p;
      skip_space(p, end);
      if (p == end) return Scan::kMore;
    }
    if (*p != '"') return Scan::kBad;
    ++p;
    JsonMember member;
    Scan scan = scan_string(p, end, member.key);
    if (scan != Scan::kOk) return scan;
    skip_space(p, end);
    if (p == end) return Scan::kMore;
    if (*p != ':') return Scan::kBad;
    ++p;
    skip_space(p, end);
    scan = scan_value(p, end, member.value, member.quoted);
    if (scan != Scan::kOk) return scan;
    members.push_back(member);
  }
}

}  // namespace

bool split_object(std::string_view text, JsonMembers& members) {
  members.all.clear();
  if (!text.starts_with('{')) return false;
  const char* p = text.data();
  return scan_object(p, text.data() + text.size(), members.all) == Scan::kOk;
}

TraceReader::TraceReader(ByteStream& stream, std::size_t window_bytes)
    : stream_(stream),
      most_window_bytes_(window_bytes),
      window_(std::min(window_bytes, kFirstWindowBytes)) {}

bool TraceReader::refill() {
  if (at_ > 0) {
    std::memmove(window_.data(), window_.data() + at_, end_ - at_);
    base_ += static_cast<std::int64_t>(at_);
    end_ -= at_;
    at_ = 0;
  }
  if (end_ == window_.size()) {
    if (window_.size() == most_window_bytes_) return false;
    window_.resize(std::min(2 * window_.size(), most_window_bytes_));
  }
  const std::size_t got = stream_.read(window_.data() + end_, window_.size() - end_);
  end_ += got;
  return got > 0;
}

std::optional<char> TraceReader::peek() {
  for (;;) {
    while (at_ != end_ && is_space(window_[at_])) ++at_;
    if (at_ != end_) return window_[at_];
    if (!refill()) {
      truncated_ = true;
      where_ = Where::kDone;
      return std::nullopt;
    }
  }
}

void TraceReader::stop(const std::string& expected) {
  problem_ = fmt::format("from byte {} on it is no JSON: expected {}", position(), expected);
  where_ = Where::kDone;
}

bool TraceReader::expect(char wanted) {
  const auto c = peek();
  if (!c) return false;
  if (*c != wanted) {
    stop(fmt::format("'{}'", wanted));
    return false;
  }
  ++at_;
  return true;
}

/// Passes over a value that is larger than the window: only depth and strings are followed.
bool TraceReader::skip_large() {
  std::int64_t depth = 0;
  bool in_string = false, escaped = false;
  for (;;) {
    if (at_ == end_ && !refill()) {
      truncated_ = true;
      where_ = Where::kDone;
      return false;
    }
    const char c = window_[at_];
    if (in_string) {
      ++at_;
      if (escaped) {
        escaped = false;
      } else if (c == '\\') {
        escaped = true;
      } else if (c == '"') {
        in_string = false;
        if (depth == 0) break;
      }
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
    ++at_;
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) break;
  }
  ++skipped_;
  return true;
}

/// The value at the position. False: none was taken, because it was too large (then it has been
/// passed over and where_ is as before) or the document ends or breaks here.
bool TraceReader::take_value(std::string_view& text, bool& quoted) {
  for (;;) {
    const char* p = window_.data() + at_;
    const Scan scan = scan_value(p, window_.data() + end_, text, quoted);
    if (scan == Scan::kOk) {
      at_ = static_cast<std::size_t>(p - window_.data());
      return true;
    }
    if (scan == Scan::kBad) {
      stop("a value");
      return false;
    }
    if (is_full()) {
      skip_large();
      return false;
    }
    if (!refill()) {
      truncated_ = true;
      where_ = Where::kDone;
      return false;
    }
  }
}

void TraceReader::end_of_events() {
  first_ = false;
  where_ = bare_array_ ? Where::kDone : Where::kDocument;
}

TraceReader::Item TraceReader::next() {
  if (where_ == Where::kStart) {
    const auto c = peek();
    if (c && *c == '[') {
      bare_array_ = true;
      where_ = Where::kEvents;
      ++at_;
    } else if (c && expect('{')) {
      where_ = Where::kDocument;
    }
    first_ = true;
  }
  while (where_ != Where::kDone) {
    const Item item = where_ == Where::kEvents ? next_event() : next_header();
    if (item != Item::kEnd) return item;
  }
  return Item::kEnd;
}

/// kEnd: nothing to report, where_ says how to go on.
TraceReader::Item TraceReader::next_event() {
  auto c = peek();
  if (!c) return Item::kEnd;
  if (*c == ']') {
    ++at_;
    end_of_events();
    return Item::kEnd;
  }
  if (!first_) {
    if (!expect(',')) return Item::kEnd;
    c = peek();
    if (!c) return Item::kEnd;
    if (*c == ']') return Item::kEnd;  // a trailing comma
  }
  first_ = false;
  if (*c != '{') {
    std::string_view ignored;
    bool quoted = false;
    if (take_value(ignored, quoted)) ++skipped_;
    return Item::kEnd;
  }
  for (;;) {
    const char* p = window_.data() + at_;
    const Scan scan = scan_object(p, window_.data() + end_, event_.all);
    if (scan == Scan::kOk) {
      at_ = static_cast<std::size_t>(p - window_.data());
      break;
    }
    if (scan == Scan::kBad) {
      stop("an event");
      return Item::kEnd;
    }
    if (is_full()) {
      skip_large();
      return Item::kEnd;
    }
    if (!refill()) {
      truncated_ = true;
      where_ = Where::kDone;
      return Item::kEnd;
    }
  }
  args_.all.clear();
  const JsonMember* args = event_.find("args");
  if (args != nullptr && !args->quoted && !split_object(args->value, args_)) args_.all.clear();
  return Item::kEvent;
}

TraceReader::Item TraceReader::next_header() {
  auto c = peek();
  if (!c) return Item::kEnd;
  if (*c == '}') {
    ++at_;
    where_ = Where::kDone;
    return Item::kEnd;
  }
  if (!first_ && !expect(',')) return Item::kEnd;
  first_ = false;
  c = peek();
  if (!c) return Item::kEnd;
  if (*c != '"') {
    stop("a key");
    return Item::kEnd;
  }
  std::string_view key;
  bool quoted = false;
  if (!take_value(key, quoted)) return Item::kEnd;
  header_key_ = key;
  if (!expect(':')) return Item::kEnd;
  c = peek();
  if (!c) return Item::kEnd;
  if (header_key_ == "traceEvents" && *c == '[') {
    ++at_;
    first_ = true;
    where_ = Where::kEvents;
    return Item::kEnd;
  }
  if (!take_value(header_.value, header_.quoted)) return Item::kEnd;
  header_.key = header_key_;
  return Item::kHeader;
}

namespace {

constexpr std::int64_t kLargestNumber = std::numeric_limits<std::int64_t>::max();

std::string_view trimmed(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

/// `text` times 10^decimals, rounded; digits and one point only.
std::optional<std::int64_t> scaled_decimal(std::string_view text, int decimals) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  std::int64_t value = 0;
  bool digits = false, point = false, round_up = false;
  int taken = 0;  // decimals
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') return std::nullopt;
    digits = true;
    if (point && taken >= decimals) {
      if (taken++ == decimals) round_up = c >= '5';
      continue;
    }
    if (point) ++taken;
    if (value > (kLargestNumber - 9) / 10) return std::nullopt;
    value = value * 10 + (c - '0');
  }
  if (!digits) return std::nullopt;
  for (; taken < decimals; ++taken) {
    if (value > kLargestNumber / 10) return std::nullopt;
    value *= 10;
  }
  if (round_up) ++value;
  return negative ? -value : value;
}

std::optional<std::int64_t> scaled(std::string_view text, int decimals) {
  text = trimmed(text);
  if (const auto value = scaled_decimal(text, decimals)) return value;
  const auto number = parse_double(text);
  if (!number) return std::nullopt;
  const double value = std::round(*number * std::pow(10.0, decimals));
  return exact_integer(value);
}

}  // namespace

std::optional<Nanoseconds> microseconds_to_ns(std::string_view text) {
  return scaled(text, 3);
}

std::optional<std::int64_t> integer_of(std::string_view text) {
  return scaled(text, 0);
}

}  // namespace shardwright::profiles
