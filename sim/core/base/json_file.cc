// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/json_file.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/read_file.h"

namespace shardwright {

namespace {

using nlohmann::json;

/// The value as JSON, shortened so that an error stays one readable sentence.
std::string describe(const json& value) {
  constexpr std::size_t kMost = 60;
  if (value.is_object() && !value.empty()) {
    return fmt::format("an object of {} {}", value.size(), value.size() == 1 ? "key" : "keys");
  }
  if (value.is_array() && value.size() > 8)
    return fmt::format("an array of {} values", value.size());
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

template <typename T>
std::string kind_name() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, std::string>) return "a string";
  if constexpr (std::is_same_v<T, double>) return "a number";
  return "an integer";
}

template <typename T>
std::string describe(const NumberRange<T>& range) {
  const bool open_below = range.min == std::numeric_limits<T>::lowest();
  const bool open_above = range.max == std::numeric_limits<T>::max();
  const std::string_view relation = range.min_excluded ? "above" : "of at least";
  const std::string below = open_below ? "" : fmt::format(" {} {}", relation, range.min);
  if (open_above) return kind_name<T>() + below;
  if (open_below) return fmt::format("{} of at most {}", kind_name<T>(), range.max);
  if (range.min_excluded)
    return fmt::format("{}{} and at most {}", kind_name<T>(), below, range.max);
  return fmt::format("{} from {} to {}", kind_name<T>(), range.min, range.max);
}

std::optional<std::int64_t> integer_of(const json& node) {
  if (node.is_number_unsigned()) {
    const auto value = node.get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return {};
    return static_cast<std::int64_t>(value);
  }
  if (node.is_number_integer()) return node.get<std::int64_t>();
  if (node.is_number_float()) return exact_integer(node.get<double>());
  return {};
}

/// The node as T, or none when it is of another kind or does not fit.
template <typename T>
std::optional<T> convert(const json& node) {
  if constexpr (std::is_same_v<T, bool>) {
    if (node.is_boolean()) return node.get<bool>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (node.is_string()) return node.get<std::string>();
  } else if constexpr (std::is_same_v<T, double>) {
    if (node.is_number()) return node.get<double>();
  } else {
    const std::optional<std::int64_t> value = integer_of(node);
    if (value && std::in_range<T>(*value)) return static_cast<T>(*value);
  }
  return std::nullopt;
}

template <typename T>
bool contains(const NumberRange<T>& range, T value) {
  const bool low_enough = range.min_excluded ? value > range.min : value >= range.min;
  return low_enough && value <= range.max;
}

/// Line and column (both from 1) of byte `offset`.
std::string position(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", line, before.size() - line_start + 1);
}

/// What the JSON library says, without its own prefix and position.
std::string reason_of(std::string message) {
  for (const std::string_view prefix : {"] ", "parse error", ": "}) {
    const std::size_t at = message.find(prefix);
    if (at != std::string::npos) message.erase(0, at + prefix.size());
  }
  return message;
}

/// Refuses what the library lets through: keys that occur twice and bottomless nesting. It sees the
/// text before a document is made of it: the library's own hook looks through the whole of an array
/// at the end of each object in it.
class StrictReader final : public nlohmann::json_sax<json> {
 public:
  StrictReader(const std::string& name, int max_depth) : name_(name), max_depth_(max_depth) {}

  bool start_object(std::size_t /*elements*/) override {
    keys_.emplace_back();
    return open();
  }
  bool start_array(std::size_t /*elements*/) override { return open(); }
  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second) {
      throw Error(fmt::format("{}: the key {} occurs twice in one object, expected once", name_,
                              describe(json(key))));
    }
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    return close();
  }
  bool end_array() override { return close(); }
  /// Whoever makes the document says it better.
  bool parse_error(std::size_t /*at*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(json::number_integer_t /*value*/) override { return true; }
  bool number_unsigned(json::number_unsigned_t /*value*/) override { return true; }
  bool number_float(json::number_float_t /*value*/, const std::string& /*text*/) override {
    return true;
  }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(json::binary_t& /*value*/) override { return true; }

 private:
  bool open() {
    if (depth_ >= max_depth_)
      throw Error(fmt::format("{}: nests deeper than the {} levels accepted", name_, max_depth_));
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::string& name_;
  int max_depth_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

json parse_strictly(std::string_view text, const std::string& name, int max_depth) {
  StrictReader reader(name, max_depth);
  json::sax_parse(text.begin(), text.end(), &reader);
  try {
    return parse_json(text);
  } catch (const json::parse_error& error) {
    const std::size_t offset = error.byte == 0 ? 0 : error.byte - 1;
    throw Error(fmt::format("{}: {}: {}", name, position(text, offset), reason_of(error.what())));
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: {}", name, reason_of(error.what())));
  }
}

}  // namespace

struct JsonFile::Document {
  std::string name;
  json content;
};

JsonFile::JsonFile(std::unique_ptr<Document> document) : document_(std::move(document)) {}
JsonFile::JsonFile(JsonFile&&) noexcept = default;
JsonFile& JsonFile::operator=(JsonFile&&) noexcept = default;
JsonFile::~JsonFile() = default;

JsonFile JsonFile::load(const std::filesystem::path& path, JsonLimits limits) {
  return parse(read_file(path, limits.max_bytes), path.string(), limits);
}

JsonFile JsonFile::parse(std::string_view text, std::string name, JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    throw Error(
        fmt::format("{}: is larger than {} bytes, the most accepted for a file of this kind", name,
                    limits.max_bytes));
  }
  if (text.starts_with("\x1f\x8b")) {
    throw Error(
        fmt::format("{}: is packed with gzip, expected JSON; unpack it with gunzip first", name));
  }
  if (const std::size_t nul = text.find('\0'); nul != text.npos)
    throw Error(fmt::format("{}: {}: holds a byte of 0, expected text", name, position(text, nul)));
  auto document = std::make_unique<Document>();
  document->name = std::move(name);
  document->content = parse_strictly(text, document->name, limits.max_depth);
  return JsonFile(std::move(document));
}

JsonReader JsonFile::root() const {
  return {&document_->name, &document_->content, ""};
}

// The reader.

std::string JsonReader::path_of(std::string_view key) const {
  const bool plain = !key.empty() && key.find_first_of(".[]\" ") == std::string_view::npos;
  if (!plain) return fmt::format("{}[\"{}\"]", path_, key);
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

const json* JsonReader::lookup(std::string_view key) const {
  if (!node_->is_object()) fail("an object");
  if (asked_ != nullptr) asked_->emplace(key);
  const auto at = node_->find(key);
  return at == node_->end() || at->is_null() ? nullptr : &*at;
}

JsonReader JsonReader::child(std::string_view key) const {
  return {file_, lookup(key), path_of(key)};
}

JsonReader JsonReader::require_child(std::string_view key) const {
  const json* node = lookup(key);
  if (node == nullptr) {
    throw Error(fmt::format("{}: {} is {}, but it is required", *file_, path_of(key),
                            node_->contains(key) ? "null" : "missing"));
  }
  return {file_, node, path_of(key)};
}

void JsonReader::fail(std::string_view accepted) const {
  throw Error(fmt::format("{}: {} is {}, expected {}", *file_, path_.empty() ? "the file" : path_,
                          describe(*node_), accepted));
}

void JsonReader::fail(std::string_view key, std::string_view accepted) const {
  const json* node = lookup(key);
  if (node != nullptr) child(key).fail(accepted);
  throw Error(fmt::format("{}: {} is missing, expected {}", *file_, path_of(key), accepted));
}

template <typename T>
T JsonReader::value() const {
  std::optional<T> result = convert<T>(*node_);
  if (!result) {
    // An integer that is none of int's is told the bounds; 3.5 is told "an integer".
    if constexpr (std::is_same_v<T, int>) {
      if (integer_of(*node_)) {
        fail(fmt::format("an integer from {} to {}", std::numeric_limits<T>::min(),
                         std::numeric_limits<T>::max()));
      }
    }
    if constexpr (std::is_same_v<T, std::int64_t>) {
      if (node_->is_number() &&
          !(node_->is_number_float() && std::abs(node_->get<double>()) < 9.2e18)) {
        fail("an integer that fits 64 bits");
      }
    }
    fail(kind_name<T>());
  }
  return std::move(*result);
}

template <typename T>
T JsonReader::value(NumberRange<T> accepted) const {
  const std::optional<T> result = convert<T>(*node_);
  if (!result || !contains(accepted, *result)) fail(describe(accepted));
  return *result;
}

template <typename T>
T JsonReader::require(std::string_view key) const {
  return require_child(key).value<T>();
}

template <typename T>
T JsonReader::require(std::string_view key, NumberRange<T> accepted) const {
  return require_child(key).value<T>(accepted);
}

template <typename T>
std::optional<T> JsonReader::find(std::string_view key) const {
  if (lookup(key) == nullptr) return std::nullopt;
  return child(key).value<T>();
}

template <typename T>
std::optional<T> JsonReader::find(std::string_view key, NumberRange<T> accepted) const {
  if (lookup(key) == nullptr) return std::nullopt;
  return child(key).value<T>(accepted);
}

template <typename T>
std::vector<T> JsonReader::require_list(std::string_view key) const {
  std::vector<T> result;
  for (const JsonReader& element : require_array(key)) result.push_back(element.value<T>());
  return result;
}

std::string JsonReader::require_choice(std::string_view key,
                                       std::initializer_list<std::string_view> accepted) const {
  const JsonReader chosen = require_child(key);
  const auto* text = chosen.node_->get_ptr<const std::string*>();
  if (text == nullptr || std::find(accepted.begin(), accepted.end(), *text) == accepted.end()) {
    chosen.fail(fmt::format("one of {}", fmt::join(accepted, ", ")));
  }
  return *text;
}

JsonReader JsonReader::require_object(std::string_view key) const {
  JsonReader result = require_child(key);
  if (!result.is_object()) result.fail("an object");
  return result;
}

std::optional<JsonReader> JsonReader::find_object(std::string_view key) const {
  if (lookup(key) == nullptr) return std::nullopt;
  return require_object(key);
}

std::vector<JsonReader> JsonReader::require_array(std::string_view key) const {
  return require_child(key).elements();
}

std::optional<std::vector<JsonReader>> JsonReader::find_array(std::string_view key) const {
  if (lookup(key) == nullptr) return std::nullopt;
  return require_array(key);
}

std::vector<JsonReader> JsonReader::elements() const {
  if (!is_array()) fail("an array");
  std::vector<JsonReader> result;
  result.reserve(node_->size());
  for (const json& element : *node_) {
    result.push_back({file_, &element, fmt::format("{}[{}]", path_, result.size())});
  }
  return result;
}

bool JsonReader::is_object() const {
  return node_->is_object();
}
bool JsonReader::is_array() const {
  return node_->is_array();
}
bool JsonReader::is_number() const {
  return node_->is_number();
}
bool JsonReader::is_string() const {
  return node_->is_string();
}
bool JsonReader::has(std::string_view key) const {
  return lookup(key) != nullptr;
}

JsonReader JsonReader::noting(std::set<std::string, std::less<>>& asked) const {
  JsonReader reader = *this;
  reader.asked_ = &asked;
  return reader;
}

std::vector<std::string> JsonReader::keys() const {
  if (!is_object()) fail("an object");
  std::vector<std::string> result;
  for (const auto& item : node_->items()) result.push_back(item.key());
  return result;
}

std::vector<std::string> JsonReader::unknown_keys(
    std::initializer_list<std::string_view> known) const {
  std::vector<std::string> result = keys();
  std::erase_if(result, [&](const std::string& key) {
    return key.starts_with('_') || std::find(known.begin(), known.end(), key) != known.end();
  });
  return result;
}

void JsonReader::reject_unknown_keys(std::initializer_list<std::string_view> known) const {
  const std::vector<std::string> unknown = unknown_keys(known);
  if (unknown.empty()) return;
  throw Error(fmt::format("{}: {} is not a known key, expected one of {}", *file_,
                          path_of(unknown.front()), fmt::join(known, ", ")));
}

#define SHARDWRIGHT_JSON_KIND(T)                                         \
  template T JsonReader::value<T>() const;                               \
  template T JsonReader::require<T>(std::string_view) const;             \
  template std::optional<T> JsonReader::find<T>(std::string_view) const; \
  template std::vector<T> JsonReader::require_list<T>(std::string_view) const;
#define SHARDWRIGHT_JSON_NUMBER(T)                                           \
  SHARDWRIGHT_JSON_KIND(T)                                                   \
  template T JsonReader::value<T>(NumberRange<T>) const;                     \
  template T JsonReader::require<T>(std::string_view, NumberRange<T>) const; \
  template std::optional<T> JsonReader::find<T>(std::string_view, NumberRange<T>) const;

SHARDWRIGHT_JSON_KIND(bool)
SHARDWRIGHT_JSON_KIND(std::string)
SHARDWRIGHT_JSON_NUMBER(int)
SHARDWRIGHT_JSON_NUMBER(std::int64_t)
SHARDWRIGHT_JSON_NUMBER(double)

json parse_json(std::string_view text, bool throws) {
  return json::parse(text, nullptr, throws);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, bool throws) {
  return nlohmann::ordered_json::parse(text, nullptr, throws);
}

namespace {

/// Digits alone.
std::optional<int> version_part(std::string_view text) {
  if (text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const std::optional<std::int64_t> value = parse_int64(text);
  if (!value || *value > std::numeric_limits<int>::max()) return std::nullopt;
  return static_cast<int>(*value);
}

/// The major version of "NAME/MAJOR.MINOR", or none when the text is something else.
std::optional<int> major_of(std::string_view schema, std::string_view name) {
  if (!schema.starts_with(name)) return std::nullopt;
  schema.remove_prefix(name.size());
  if (!schema.starts_with('/')) return std::nullopt;
  schema.remove_prefix(1);
  const std::size_t dot = schema.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::optional<int> major = version_part(schema.substr(0, dot));
  return version_part(schema.substr(dot + 1)) ? major : std::nullopt;
}

}  // namespace

void require_schema(const JsonReader& root, std::string_view name, int major) {
  const auto schema = root.require<std::string>("schema");
  const std::optional<int> found = major_of(schema, name);
  if (found == major) return;
  const std::string accepted = fmt::format("{}/{}.0", name, major);
  if (found && *found > major) {
    throw Error(fmt::format("{}: schema is {}, which a newer shardwright wrote, expected {}",
                            root.file(), schema, accepted));
  }
  root.fail("schema", accepted);
}

}  // namespace shardwright
