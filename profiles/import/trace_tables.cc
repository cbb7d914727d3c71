// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/trace_tables.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "profiles/import/trace_reader.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"
#include "sim/core/base/numbers.h"

namespace shardwright::profiles {

NameTable::NameTable(std::size_t max_bytes) : left_(max_bytes) {
  ids_.emplace(texts_.emplace_back(), 0);
}

NameId NameTable::id(std::string_view text) {
  if (const auto found = ids_.find(text); found != ids_.end()) return found->second;
  constexpr std::size_t kOverhead = 96;  // of one entry of the map and the list
  if (text.size() + kOverhead > left_) {
    ++refused_;
    return 0;
  }
  left_ -= text.size() + kOverhead;
  const auto id = static_cast<NameId>(texts_.size());
  ids_.emplace(texts_.emplace_back(text), id);
  return id;
}

void count_left_out(std::vector<LeftOut>& list, const std::string& what, double seconds,
                    std::int64_t count) {
  for (LeftOut& entry : list) {
    if (entry.what == what) {
      entry.count += count;
      entry.seconds += seconds;
      return;
    }
  }
  list.push_back({what, count, seconds});
}

namespace {

using PlainJson = nlohmann::json;

constexpr std::size_t kMaxTensors = 20000;

bool read_dims(const PlainJson& list, TensorShape& shape) {
  if (!list.is_array() || list.size() > 16) return false;
  for (const PlainJson& extent : list) {
    std::int64_t value = -1;
    if (extent.is_number_integer()) value = extent.get<std::int64_t>();
    if (extent.is_string()) value = integer_of(extent.get<std::string>()).value_or(-1);
    if (value < 0) return false;
    shape.dims.push_back(value);
  }
  return true;
}

std::string text_of(const PlainJson& value) {
  if (value.is_string()) return value.get<std::string>();
  return value.is_primitive() ? value.dump() : std::string{};
}

}  // namespace

std::int64_t TensorShape::elements() const {
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  std::int64_t product = 1;
  for (const std::int64_t extent : dims) {
    if (extent == 0) return 0;
    product = extent > kMost / product ? kMost : product * extent;
  }
  return product;
}

int element_bytes_of(std::string_view type) {
  if (type.starts_with("c10::")) type.remove_prefix(5);
  static constexpr std::array<std::pair<std::string_view, int>, 31> kTypes{{
      {"BFloat16", 2},
      {"Half", 2},
      {"float", 4},
      {"Float", 4},
      {"double", 8},
      {"Double", 8},
      {"long int", 8},
      {"long", 8},
      {"Long", 8},
      {"int", 4},
      {"Int", 4},
      {"short int", 2},
      {"Short", 2},
      {"bool", 1},
      {"Bool", 1},
      {"unsigned char", 1},
      {"Byte", 1},
      {"signed char", 1},
      {"Char", 1},
      {"complex<float>", 8},
      {"complex<double>", 16},
      {"bfloat16", 2},
      {"float16", 2},
      {"float32", 4},
      {"half", 2},
      {"int8", 1},
      {"uint8", 1},
      {"uint32", 4},
      {"uint64", 8},
      {"int64", 8},
      {"int32", 4},
  }};
  for (const auto& [name, bytes] : kTypes) {
    if (name == type) return bytes;
  }
  return type.starts_with("Float8_") || type.starts_with("float8_") || type.starts_with("f8e") ? 1
                                                                                               : 0;
}

std::vector<Argument> parse_arguments(std::string_view recorded) {
  const std::size_t first = recorded.find(kPartEnd);
  if (first == std::string_view::npos) return {};
  const std::size_t second = recorded.find(kPartEnd, first + 1);
  if (second == std::string_view::npos) return {};
  const PlainJson dims = parse_json(recorded.substr(0, first), false);
  const PlainJson types = parse_json(recorded.substr(first + 1, second - first - 1), false);
  const PlainJson values = parse_json(recorded.substr(second + 1), false);
  if (!dims.is_array() || dims.size() > kMaxTensors) return {};
  std::vector<Argument> arguments(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) {
    Argument& argument = arguments[i];
    const PlainJson* type = types.is_array() && i < types.size() ? &types[i] : nullptr;
    if (values.is_array() && i < values.size()) argument.value = text_of(values[i]);
    if (!dims[i].is_array()) continue;
    argument.is_list = !dims[i].empty() && dims[i][0].is_array();
    if (argument.is_list) {
      for (std::size_t t = 0; t < std::min(dims[i].size(), kMaxTensors); ++t) {
        TensorShape shape;
        if (!read_dims(dims[i][t], shape)) return {};
        if (type != nullptr && type->is_array() && t < type->size()) {
          shape.element_bytes = element_bytes_of(text_of((*type)[t]));
        }
        argument.tensors.push_back(std::move(shape));
      }
      continue;
    }
    TensorShape shape;
    if (!read_dims(dims[i], shape)) return {};
    const std::string name = type != nullptr ? text_of(*type) : std::string{};
    shape.element_bytes = element_bytes_of(name);
    // Scalars, strings and absent arguments have no extents either; only a tensor has its type.
    if (shape.dims.empty() && shape.element_bytes == 0) continue;
    argument.tensors.push_back(std::move(shape));
  }
  return arguments;
}

namespace {

/// Innermost open range while walking along one thread after the other.
class Nesting {
 public:
  explicit Nesting(const std::deque<HostRange>& ranges) : ranges_(ranges) {}

  /// The innermost range that contains `at`; call with (thread, at) ascending.
  std::uint32_t innermost(std::uint32_t thread, Nanoseconds at) {
    while (next_ < ranges_.size() &&
           std::tie(ranges_[next_].thread, ranges_[next_].begin) <= std::tie(thread, at)) {
      open(static_cast<std::uint32_t>(next_));
      ++next_;
    }
    close(thread, at);
    return innermost_open();
  }

  /// The parent of the range `index`, which is then open itself; call with ascending index.
  std::uint32_t open(std::uint32_t index) {
    close(ranges_[index].thread, ranges_[index].begin);
    const std::uint32_t parent = innermost_open();
    stack_.push_back(index);
    return parent;
  }

 private:
  void close(std::uint32_t thread, Nanoseconds at) {
    for (std::uint32_t last = innermost_open();
         last != kNoIndex && (ranges_[last].thread != thread || ranges_[last].end <= at);
         last = innermost_open()) {
      stack_.pop_back();
    }
  }

  std::uint32_t innermost_open() const {
    return stack_.empty() ? kNoIndex : last_of(stack_, "the stack of ranges");
  }

  const std::deque<HostRange>& ranges_;
  std::vector<std::uint32_t> stack_;
  std::size_t next_ = 0;
};

template <typename Less>
std::vector<std::uint32_t> order_of(std::size_t size, Less less) {
  std::vector<std::uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), less);
  return order;
}

}  // namespace

JoinCounts join(TraceTables& tables) {
  JoinCounts counts;
  // Of two with the same times the one that the profiler wrote first is the outer one.
  std::stable_sort(tables.ranges.begin(), tables.ranges.end(),
                   [](const HostRange& a, const HostRange& b) {
                     return std::tie(a.thread, a.begin, b.end) < std::tie(b.thread, b.begin, a.end);
                   });
  Nesting parents(tables.ranges);
  for (std::uint32_t i = 0; i < tables.ranges.size(); ++i)
    tables.ranges[i].parent = parents.open(i);

  const auto& calls = tables.calls;
  Nesting around(tables.ranges);
  for (const std::uint32_t i : order_of(calls.size(), [&](std::uint32_t a, std::uint32_t b) {
         return std::tie(calls[a].thread, calls[a].begin, a) <
                std::tie(calls[b].thread, calls[b].begin, b);
       })) {
    tables.calls[i].range = around.innermost(calls[i].thread, calls[i].begin);
  }

  const std::vector<std::uint32_t> by_id =
      order_of(calls.size(), [&](std::uint32_t a, std::uint32_t b) {
        return std::tie(calls[a].correlation, calls[a].begin, a) <
               std::tie(calls[b].correlation, calls[b].begin, b);
      });
  for (std::size_t i = 1; i < by_id.size(); ++i) {
    const auto id = calls[by_id[i]].correlation;
    counts.ambiguous += id != 0 && id == calls[by_id[i - 1]].correlation;
  }
  for (DeviceSpan& span : tables.device) {
    if (span.correlation != 0) {
      auto after = std::upper_bound(by_id.begin(), by_id.end(), span,
                                    [&](const DeviceSpan& s, std::uint32_t call) {
                                      return std::tie(s.correlation, s.begin) <
                                             std::tie(calls[call].correlation, calls[call].begin);
                                    });
      if (after != by_id.begin() && calls[*(after - 1)].correlation == span.correlation) {
        span.call = *(after - 1);
      } else if (after != by_id.end() && calls[*after].correlation == span.correlation) {
        span.call = *after;  // the clocks of host and device differ by a little
      }
    }
    counts.without_call += span.call == kNoIndex;
  }
  return counts;
}

}  // namespace shardwright::profiles
