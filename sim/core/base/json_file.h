// SPDX-License-Identifier: Apache-2.0
// Loading JSON files and reading typed values from them.
//
// A JsonFile owns a parsed document; a JsonReader is a view of one value in it that knows the file
// and its dotted path, so that every failed read is one sentence: file, path, value found, what is
// accepted. Reads are strict: integers are exactly integers in range (3.5 and 1e30 are errors, 2e12
// and 4096.0 are integers), a key may occur once per object, and unknown keys can be listed or
// rejected. A null counts as absent, because Hugging Face configs write it that way. Writing JSON
// is not done here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardwright {

/// Numbers that a reader accepts. Built by at_least, above and between.
template <typename T>
struct NumberRange {
  T min = std::numeric_limits<T>::lowest();
  T max = std::numeric_limits<T>::max();
  bool min_excluded = false;

  NumberRange() = default;
  NumberRange(T lowest, T highest, bool without_lowest = false)
      : min(lowest), max(highest), min_excluded(without_lowest) {}
  /// at_least(1) serves int64 and double keys alike; an open end stays open.
  template <typename U>
  NumberRange(const NumberRange<U>& other)
      : min(other.min == std::numeric_limits<U>::lowest() ? std::numeric_limits<T>::lowest()
                                                          : static_cast<T>(other.min)),
        max(other.max == std::numeric_limits<U>::max() ? std::numeric_limits<T>::max()
                                                       : static_cast<T>(other.max)),
        min_excluded(other.min_excluded) {}
};

template <typename T>
NumberRange<T> at_least(T min) {
  return {min, std::numeric_limits<T>::max()};
}
template <typename T>
NumberRange<T> above(T min) {
  return {min, std::numeric_limits<T>::max(), true};
}
template <typename T>
NumberRange<T> between(T min, T max) {
  return {min, max};
}

/// A view of one value of a JsonFile; valid while that JsonFile lives. T is one of bool, int,
/// int64_t, double, std::string. Every member that reads throws Error as described above.
class JsonReader {
 public:
  /// The value of `key`, which must be there.
  template <typename T>
  T require(std::string_view key) const;
  template <typename T>
  T require(std::string_view key, NumberRange<T> accepted) const;

  /// The value of `key`, or none when it is absent or null.
  template <typename T>
  std::optional<T> find(std::string_view key) const;
  template <typename T>
  std::optional<T> find(std::string_view key, NumberRange<T> accepted) const;

  /// The value of `key`, or `fallback` when it is absent or null.
  template <typename T>
  T optional(std::string_view key, T fallback) const {
    return find<T>(key).value_or(std::move(fallback));
  }
  template <typename T>
  T optional(std::string_view key, T fallback, NumberRange<T> accepted) const {
    return find<T>(key, accepted).value_or(std::move(fallback));
  }

  /// One of the accepted words; the error lists them all.
  std::string require_choice(std::string_view key,
                             std::initializer_list<std::string_view> accepted) const;

  JsonReader require_object(std::string_view key) const;
  std::optional<JsonReader> find_object(std::string_view key) const;
  /// The elements of the array `key`, in order; find_array gives none when it is absent or null.
  std::vector<JsonReader> require_array(std::string_view key) const;
  std::optional<std::vector<JsonReader>> find_array(std::string_view key) const;
  /// As require_array with every element read as T.
  template <typename T>
  std::vector<T> require_list(std::string_view key) const;

  /// The value under the reader itself (for elements of arrays).
  template <typename T>
  T value() const;
  template <typename T>
  T value(NumberRange<T> accepted) const;
  /// The elements of the reader itself, which must be an array.
  std::vector<JsonReader> elements() const;

  bool is_object() const;
  bool is_array() const;
  bool is_number() const;
  bool is_string() const;
  /// True when `key` is there and not null.
  bool has(std::string_view key) const;
  /// This reader, adding each key of this object that is asked for through it to `asked`.
  JsonReader noting(std::set<std::string, std::less<>>& asked) const;
  /// The keys of this object in alphabetical order.
  std::vector<std::string> keys() const;
  /// Keys of this object that `known` does not list; keys that begin with '_' are comments and are
  /// left out.
  std::vector<std::string> unknown_keys(std::initializer_list<std::string_view> known) const;
  /// Throws Error that names the first unknown key and lists the accepted ones.
  void reject_unknown_keys(std::initializer_list<std::string_view> known) const;

  /// Throws Error about the value of `key`: "FILE: PATH is VALUE, expected ACCEPTED".
  [[noreturn]] void fail(std::string_view key, std::string_view accepted) const;
  /// The same about the reader's own value.
  [[noreturn]] void fail(std::string_view accepted) const;

  const std::string& file() const { return *file_; }
  /// Dotted path from the root, for example "layers[3].size"; empty for the root.
  const std::string& path() const { return path_; }
  const nlohmann::json& raw() const { return *node_; }

 private:
  friend class JsonFile;
  JsonReader(const std::string* file, const nlohmann::json* node, std::string path)
      : file_(file), node_(node), path_(std::move(path)) {}
  const nlohmann::json* lookup(std::string_view key) const;  // null when absent or JSON null
  JsonReader child(std::string_view key) const;
  JsonReader require_child(std::string_view key) const;
  std::string path_of(std::string_view key) const;

  const std::string* file_;
  const nlohmann::json* node_;
  std::string path_;
  std::set<std::string, std::less<>>* asked_ = nullptr;
};

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  int max_depth = 64;
};

/// A parsed JSON document and its name.
class JsonFile {
 public:
  /// Throws Error naming the file, and line and column where the text is not JSON.
  static JsonFile load(const std::filesystem::path& path, JsonLimits limits = {});
  /// As load, for text that is already in memory; `name` stands for the file in errors.
  static JsonFile parse(std::string_view text, std::string name, JsonLimits limits = {});

  JsonFile(JsonFile&&) noexcept;
  JsonFile& operator=(JsonFile&&) noexcept;
  ~JsonFile();

  JsonReader root() const;

 private:
  struct Document;
  explicit JsonFile(std::unique_ptr<Document> document);
  std::unique_ptr<Document> document_;
};

/// nlohmann's own reading, which each unit that calls it compiles anew. What is no JSON throws its
/// parse_error, or is a discarded value.
nlohmann::json parse_json(std::string_view text, bool throws = true);
nlohmann::ordered_json parse_ordered_json(std::string_view text, bool throws = true);

// The "schema" key of the files this project writes: "shardwright.plan/1.0".
//
// A higher minor version adds what an older reader may ignore; a higher major version changes what
// is there, and an older reader must not guess.

/// Throws Error unless the root's "schema" is `name` ("shardwright.plan") of the major version
/// `major`; a newer one is said to be newer.
void require_schema(const JsonReader& root, std::string_view name, int major);

}  // namespace shardwright
