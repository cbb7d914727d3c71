// SPDX-License-Identifier: Apache-2.0
#include "profiles/fields.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 3> kManagers = {"static", "caching-allocator",
                                                       "estimated-allocator"};
constexpr std::string_view kConfidences[] = {"high", "medium", "low", "inferred", "uncertain"};

template <typename T>
constexpr bool is_integer = std::is_same_v<T, std::int64_t> || std::is_same_v<T, int>;

std::optional<MemoryManager> manager_from(std::string_view name) {
  return value_in<MemoryManager>(kManagers, name);
}

bool accepts(const NumberRange<double>& range, double value) {
  return (range.min_excluded ? value > range.min : value >= range.min) && value <= range.max;
}

std::string range_text(std::string_view kind, const NumberRange<double>& range) {
  const bool open_below = range.min == std::numeric_limits<double>::lowest();
  const bool open_above = range.max == std::numeric_limits<double>::max();
  if (open_below && open_above) return std::string(kind);
  const std::string below =
      fmt::format("{} {}", range.min_excluded ? "above" : "of at least", range.min);
  if (open_above) return fmt::format("{} {}", kind, below);
  if (open_below) return fmt::format("{} of at most {}", kind, range.max);
  return fmt::format("{} {} and at most {}", kind, below, range.max);
}

/// An integer's range is cut to what its type holds.
template <typename T>
NumberRange<T> integer_range(const NumberRange<double>& range) {
  constexpr T kLargest = std::numeric_limits<T>::max();
  NumberRange<T> result;
  if (range.min > -9e18) result.min = static_cast<T>(range.min);
  if (range.max < static_cast<double>(kLargest)) result.max = static_cast<T>(range.max);
  result.min_excluded = range.min_excluded;
  return result;
}

bool knows(const Field& field, const std::string& word) {
  return field.words == nullptr ||
         std::find(field.words->begin(), field.words->end(), word) != field.words->end();
}

bool knows(const Field& field, const std::vector<std::string>& words) {
  return std::all_of(words.begin(), words.end(),
                     [&](const std::string& word) { return knows(field, word); });
}

template <typename T>
void read_value(const JsonReader& parent, std::string_view key, T* target, const Field& field) {
  const NumberRange<double>& accepted = field.accepted;
  if constexpr (std::is_same_v<T, double>) {
    *target = parent.require<double>(key, accepted);
  } else if constexpr (is_integer<T>) {
    *target = parent.require<T>(key, integer_range<T>(accepted));
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    std::vector<double> list;
    for (const JsonReader& element : parent.require_array(key)) {
      list.push_back(element.value<double>(accepted));
    }
    *target = std::move(list);
  } else if constexpr (std::is_same_v<T, std::string>) {
    std::string word = parent.require<std::string>(key);
    if (!knows(field, word)) parent.fail(key, accepted_text(field));
    *target = std::move(word);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    std::vector<std::string> words = parent.require_list<std::string>(key);
    if (!knows(field, words)) parent.fail(key, accepted_text(field));
    *target = std::move(words);
  } else if constexpr (std::is_same_v<T, MemoryManager>) {
    *target = *manager_from(parent.require_choice(key, {kManagers[0], kManagers[1], kManagers[2]}));
  } else {
    *target = parent.require<T>(key);
  }
}

std::optional<std::vector<double>> parse_list(std::string_view text,
                                              const NumberRange<double>& accepted) {
  std::vector<double> list;
  if (text.empty()) return list;
  for (const std::string& word : split_commas(text)) {
    const std::optional<double> value = parse_double(word);
    if (!value || !accepts(accepted, *value)) return std::nullopt;
    list.push_back(*value);
  }
  return list;
}

/// Assigns `text` to the target; false when it is not accepted.
template <typename T>
bool assign(T* target, std::string_view text, const Field& field) {
  const NumberRange<double>& accepted = field.accepted;
  std::optional<T> value;
  if constexpr (std::is_same_v<T, double>) {
    value = parse_double(plain_number(text).value_or(std::string(text)));
    if (value && !accepts(accepted, *value)) value.reset();
  } else if constexpr (is_integer<T>) {
    const std::optional<std::int64_t> wide =
        parse_int64(plain_number(text).value_or(std::string(text)));
    if (wide && std::in_range<T>(*wide) && accepts(accepted, static_cast<double>(*wide))) {
      value = static_cast<T>(*wide);
    }
  } else if constexpr (std::is_same_v<T, bool>) {
    if (text == "true" || text == "false") value = text == "true";
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = std::string(text);
    if (!knows(field, *value)) value.reset();
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    value = text.empty() ? T{} : split_commas(text);
    if (!knows(field, *value)) value.reset();
  } else if constexpr (std::is_same_v<T, MemoryManager>) {
    value = manager_from(text);
  } else {
    value = parse_list(text, accepted);
  }
  if (!value) return false;
  *target = std::move(*value);
  return true;
}

ordered_json value_of(const Field& field) {
  return std::visit(
      [](const auto* target) -> ordered_json {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, MemoryManager>) return std::string(name_of(*target));
        // Whole numbers are written without ".0": 312000000000000, not 312000000000000.0.
        if constexpr (std::is_same_v<T, double>) {
          if (std::abs(*target) < 1e15 && std::trunc(*target) == *target) {
            return static_cast<std::int64_t>(*target);
          }
        }
        return *target;
      },
      field.target);
}

std::string join_path(std::string_view prefix, std::string_view key) {
  return prefix.empty() ? std::string(key) : fmt::format("{}.{}", prefix, key);
}

/// Keys that would be accepted beside `path`.
std::vector<std::string> siblings(const FieldList& fields, std::string_view prefix,
                                  const std::vector<std::string_view>& others) {
  std::set<std::string> result;
  if (prefix.empty()) result.insert(others.begin(), others.end());
  for (const Field& field : fields.fields()) {
    std::string_view rest = field.path;
    if (!prefix.empty()) {
      if (!rest.starts_with(prefix) || rest[prefix.size()] != '.') continue;
      rest.remove_prefix(prefix.size() + 1);
    }
    result.emplace(rest.substr(0, rest.find('.')));
  }
  return {result.begin(), result.end()};
}

struct FieldReader {
  const FieldList& fields;
  const std::vector<std::string_view>& others;
  Origins& origins;
  std::set<std::string, std::less<>> seen;

  void read(const JsonReader& object, std::string_view prefix) {
    for (const std::string& key : object.keys()) {
      if (key.starts_with('_') || !object.has(key)) continue;
      const std::string path = join_path(prefix, key);
      if (const Field* field = fields.find(path)) {
        origins[field->path] = read_field(object, key, *field);
        seen.insert(field->path);
      } else if (fields.has_group(path)) {
        read(object.require_object(key), path);
      } else if (!prefix.empty() || std::find(others.begin(), others.end(), key) == others.end()) {
        throw Error(fmt::format("{}: {} is not a known key, expected one of {}", object.file(),
                                path, fmt::join(siblings(fields, prefix, others), ", ")));
      }
    }
  }
};

}  // namespace

const Field* FieldList::find(std::string_view path) const& {
  const auto at = std::find_if(fields_.begin(), fields_.end(),
                               [&](const Field& field) { return field.path == path; });
  return at == fields_.end() ? nullptr : &*at;
}

bool FieldList::has_group(std::string_view path) const {
  return std::any_of(fields_.begin(), fields_.end(), [&](const Field& field) {
    return field.path.size() > path.size() && field.path.starts_with(path) &&
           field.path[path.size()] == '.';
  });
}

std::vector<std::string> FieldList::paths() const {
  std::vector<std::string> result;
  for (const Field& field : fields_) result.push_back(field.path);
  return result;
}

Origin read_field(const JsonReader& parent, std::string_view key, const Field& field) {
  const auto read_from = [&](const JsonReader& holder, std::string_view name) {
    std::visit([&](auto* target) { read_value(holder, name, target, field); }, field.target);
  };
  if (!parent.raw().at(std::string(key)).is_object()) {
    read_from(parent, key);
    return {"given in " + parent.file(), "", ""};
  }
  const JsonReader wrapped = parent.require_object(key);
  wrapped.reject_unknown_keys({"value", "unit", "source", "confidence", "date"});
  if (wrapped.has("unit") && wrapped.require<std::string>("unit") != field.unit) {
    wrapped.fail("unit", field.unit.empty() ? "no unit: the value is a plain number or word"
                                            : fmt::format("\"{}\"", field.unit));
  }
  read_from(wrapped, "value");
  Origin origin;
  origin.source = wrapped.optional<std::string>("source", "given in " + parent.file());
  origin.confidence = wrapped.optional<std::string>("confidence", "");
  origin.date = wrapped.optional<std::string>("date", "");
  if (!origin.confidence.empty() && std::find(std::begin(kConfidences), std::end(kConfidences),
                                              origin.confidence) == std::end(kConfidences)) {
    wrapped.fail("confidence", fmt::format("one of {}", fmt::join(kConfidences, ", ")));
  }
  return origin;
}

void read_fields(const JsonReader& root, const FieldList& fields,
                 const std::vector<std::string_view>& others, bool has_base, Origins& origins) {
  if (!root.is_object()) root.fail("an object");
  FieldReader reader{fields, others, origins, {}};
  reader.read(root, "");
  if (has_base) return;
  for (const Field& field : fields.fields()) {
    if (field.need == Need::kOptional || reader.seen.contains(field.path)) continue;
    throw Error(fmt::format("{}: {} is missing, expected {} ({}), or a \"base\" to take it from",
                            root.file(), field.path, accepted_text(field), field.meaning));
  }
}

namespace {

/// The last part of a path and the object that has it.
std::pair<JsonReader, std::string_view> holder_of(JsonReader object, std::string_view path) {
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    object = object.require_object(path.substr(0, dot));
    path.remove_prefix(dot + 1);
  }
  return {std::move(object), path};
}

/// Where a document has the value of a path; made if it is not there.
ordered_json& place_of(ordered_json& document, std::string_view path) {
  ordered_json* node = &document;
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    node = &(*node)[std::string(path.substr(0, dot))];
    path.remove_prefix(dot + 1);
  }
  return (*node)[std::string(path)];
}

/// "ring_base_s" of ring_base_s.ll: where a file has an array.
std::string_view array_of(const Field& field) {
  return std::string_view(field.path).substr(0, field.path.rfind('.'));
}

void read_element(const JsonReader& object, const FieldList& fields, const Field& field) {
  const auto [holder, key] = holder_of(object, array_of(field));
  const auto size = static_cast<std::size_t>(
      std::count_if(fields.fields().begin(), fields.fields().end(), [&](const Field& other) {
        return other.element >= 0 && array_of(other) == array_of(field);
      }));
  const std::vector<JsonReader> elements = holder.require_array(key);
  if (elements.size() != size) holder.fail(key, fmt::format("an array of {} numbers", size));
  *std::get<double*>(field.target) =
      elements[static_cast<std::size_t>(field.element)].value<double>(field.accepted);
}

void reject_unknown(const JsonReader& object, const FieldList& fields, const std::string& prefix) {
  for (const std::string& key : object.keys()) {
    const std::string path = join_path(prefix, key);
    if (key.starts_with('_') || fields.find(path) != nullptr) continue;
    if (!fields.has_group(path)) {
      object.fail(key,
                  fmt::format("only the keys {}", fmt::join(siblings(fields, prefix, {}), ", ")));
    }
    if (object.raw().at(key).is_object()) reject_unknown(object.require_object(key), fields, path);
  }
}

}  // namespace

void read_values(const JsonReader& object, const FieldList& fields) {
  for (const Field& field : fields.fields()) {
    if (field.element >= 0) {
      read_element(object, fields, field);
      continue;
    }
    const auto [holder, key] = holder_of(object, field.path);
    std::visit(
        [&, holder = &holder, key = key](auto* target) { read_value(*holder, key, target, field); },
        field.target);
  }
  reject_unknown(object, fields, "");
}

void set_field(const Field& field, std::string_view text, std::string_view where) {
  const bool accepted =
      std::visit([&](auto* target) { return assign(target, text, field); }, field.target);
  if (!accepted) {
    throw Error(
        fmt::format("{}: {} is '{}', expected {}", where, field.path, text, accepted_text(field)));
  }
}

/// `any` where the field accepts every word.
static std::string word_text(std::string_view any, std::string_view some, const Field& field) {
  if (field.words == nullptr) return std::string(any);
  return fmt::format("{} {}", some, fmt::join(*field.words, ", "));
}

std::string accepted_text(const Field& field) {
  const std::string kind = std::visit(
      [&](const auto* target) -> std::string {
        using T = std::remove_cvref_t<decltype(*target)>;
        if constexpr (std::is_same_v<T, bool>) return "true or false";
        if constexpr (std::is_same_v<T, std::string>) return word_text("a word", "one of", field);
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return word_text("a list of words", "a list, each element one of", field);
        }
        if constexpr (std::is_same_v<T, MemoryManager>) {
          return fmt::format("one of {}", fmt::join(kManagers, ", "));
        }
        if constexpr (std::is_same_v<T, std::vector<double>>) {
          return "a list, each element " + range_text("a number", field.accepted);
        }
        return range_text(is_integer<T> ? "an integer" : "a number", field.accepted);
      },
      field.target);
  return field.unit.empty() ? kind : fmt::format("{} in {}", kind, field.unit);
}

std::string set_text(const Field& field) {
  const ordered_json value = value_of(field);
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string list;
  for (const ordered_json& element : value) {
    if (!list.empty()) list += ',';
    list += element.is_string() ? element.get<std::string>() : element.dump();
  }
  return list;
}

std::string json_text(const Field& field) {
  return value_of(field).dump();
}

std::string write_fields(const FieldList& fields, const Origins& origins, const std::string& head) {
  ordered_json document = parse_ordered_json("{" + head + "}");
  for (const Field& field : fields.fields()) {
    const auto at = origins.find(field.path);
    if (at == origins.end() && field.need == Need::kOptional) continue;
    ordered_json leaf = ordered_json::object();
    leaf["value"] = value_of(field);
    if (!field.unit.empty()) leaf["unit"] = std::string(field.unit);
    if (at != origins.end()) {
      leaf["source"] = at->second.source;
      if (!at->second.confidence.empty()) leaf["confidence"] = at->second.confidence;
      if (!at->second.date.empty()) leaf["date"] = at->second.date;
    }
    place_of(document, field.path) = std::move(leaf);
  }
  return document.dump(2);
}

std::string_view name_of(MemoryManager manager) {
  return kManagers[static_cast<std::size_t>(manager)];
}

}  // namespace shardwright::profiles
