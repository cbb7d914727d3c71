// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/trace_tables.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "profiles/import/trace_reader.h"
#include "sim/core/base/json_file.h"

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

}  // namespace shardwright::profiles
