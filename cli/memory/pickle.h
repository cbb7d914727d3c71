// SPDX-License-Identifier: Apache-2.0
// Python pickles that hold data and nothing else.
//
// A pickle is a program for a stack machine, and Python's own reader runs whatever it names. This
// one knows only the instructions that build numbers, texts, lists, tuples and dictionaries
// (protocols 2 to 5; Python's Lib/pickletools.py describes them) and refuses every other by name:
// what torch.cuda.memory._dump_snapshot writes has none. Objects that occur more than once are
// shared, as in Python, so a small file cannot become a large tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwright::cli {

class Pickle;

/// A view of one object; lives as long as its Pickle.
class PickleValue {
 public:
  bool is_none() const;
  bool is_list() const;                     // or a tuple
  std::size_t size() const;                 // of a list or dictionary, else 0
  PickleValue at(std::size_t index) const;  // of a list
  /// The member of a dictionary; none where this is none or has no such key among its first 64: no
  /// dictionary of PyTorch has more, and one may be looked into very often.
  std::optional<PickleValue> find(std::string_view key) const;
  std::optional<std::int64_t> integer() const;  // also of True and of a float that is one
  std::optional<std::string_view> text() const;
  /// The same for every place that shares the object.
  std::uint32_t id() const { return node_; }

 private:
  friend class Pickle;
  PickleValue(const Pickle* pickle, std::uint32_t node) : pickle_(pickle), node_(node) {}
  const Pickle* pickle_;
  std::uint32_t node_;
};

class Pickle {
 public:
  /// Throws Error naming file, byte and instruction.
  static Pickle parse(std::string bytes, const std::string& name);

  PickleValue root() const { return {this, root_}; }

 private:
  friend class PickleValue;
  friend class PickleParser;
  enum class Kind : std::uint8_t { kNone, kInteger, kFloat, kText, kList, kDict, kMark };
  struct Node {
    Kind kind = Kind::kNone;
    std::int64_t integer = 0;
    double real = 0;
    std::string_view text;
    std::vector<std::uint32_t> items;  // of a dictionary: key, value, key, value
  };

  std::string bytes_;  // that texts are views of
  std::vector<Node> nodes_;
  std::uint32_t root_ = 0;
};

/// Writes protocol 2 with the instructions that PyTorch's own viewer reads, too.
class PickleWriter {
 public:
  PickleWriter();
  PickleWriter& begin_dict();
  PickleWriter& end_dict();
  PickleWriter& begin_list();
  PickleWriter& end_list();
  PickleWriter& key(std::string_view text) { return text_value(text); }
  PickleWriter& text_value(std::string_view text);
  PickleWriter& integer(std::int64_t value);
  PickleWriter& boolean(bool value);
  /// The two integers of a pool's id.
  PickleWriter& pair(std::int64_t first, std::int64_t second);
  /// The whole file; nothing may be written after it.
  std::string finish();

 private:
  std::string bytes_;
};

}  // namespace shardwright::cli
