// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/json_mutator.h"

#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwright::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostDepth = 200;
constexpr std::size_t kMostNodes = 50'000;

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  void change(Json& document) {
    for (std::size_t edits = 1 + pick(4); edits > 0; --edits) {
      collect(document);
      edit(*nodes_[pick(nodes_.size())].value);
    }
  }

 private:
  struct Node {
    Json* value;
    std::string_view key;  // of the object that it is a member of
  };

  std::size_t pick(std::size_t n) { return random_() % n; }

  void collect(Json& document) {
    nodes_.clear();
    collect(document, "", 0);
  }
  void collect(Json& value, std::string_view key, int depth) {
    if (depth > kMostDepth || nodes_.size() >= kMostNodes) return;
    nodes_.push_back({&value, key});
    if (value.is_object()) {
      for (auto& [name, member] : value.items()) collect(member, name, depth + 1);
    } else if (value.is_array()) {
      for (Json& element : value) collect(element, key, depth + 1);
    }
  }

  void edit(Json& value) {
    if (value.is_object() && !value.empty()) return edit_object(value);
    if (value.is_array() && !value.empty()) return edit_array(value);
    switch (pick(5)) {
      case 0:
        value = interesting();
        return;
      case 1:
        value = Json(*nodes_[pick(nodes_.size())].value);
        return;
      case 2:
        take_from_namesake(value);
        return;
      default:
        if (value.is_number()) return edit_number(value);
        if (value.is_string()) return edit_text(value);
        value = interesting();
    }
  }

  /// Another member of the same key, somewhere in the document.
  void take_from_namesake(Json& value) {
    std::string_view key;
    for (const Node& node : nodes_) {
      if (node.value == &value) key = node.key;
    }
    std::vector<const Json*> namesakes;
    for (const Node& node : nodes_) {
      if (node.key == key && node.value != &value) namesakes.push_back(node.value);
    }
    if (!namesakes.empty()) value = Json(*namesakes[pick(namesakes.size())]);
  }

  void edit_object(Json& object) {
    auto at = object.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(pick(object.size())));
    const std::string key = at.key();
    switch (pick(6)) {
      case 0:
        object.erase(key);
        return;
      case 1: {  // under another name
        const Json value = at.value();
        object.erase(key);
        object[edited(key)] = value;
        return;
      }
      case 2: {  // a member of some other object
        const Node& node = nodes_[pick(nodes_.size())];
        const std::string name(node.key);
        const Json value = *node.value;
        object[name] = value;
        return;
      }
      case 3:
        take_from_namesake(at.value());
        return;
      default:
        edit(at.value());
    }
  }

  void edit_array(Json& array) {
    const std::size_t at = pick(array.size());
    const auto place = array.begin() + static_cast<std::ptrdiff_t>(at);
    switch (pick(6)) {
      case 0:
        array.erase(place);
        return;
      case 1: {
        const Json element = array[at];
        for (std::size_t count = pick(8) == 0 ? 1 + pick(300) : 1; count > 0; --count) {
          array.insert(array.begin() + static_cast<std::ptrdiff_t>(at), element);
        }
        return;
      }
      case 2:
        std::swap(array[at], array[pick(array.size())]);
        return;
      case 3: {
        const Json value = *nodes_[pick(nodes_.size())].value;
        array.insert(array.begin() + static_cast<std::ptrdiff_t>(at), value);
        return;
      }
      default:
        edit(array[at]);
    }
  }

  void edit_number(Json& value) {
    if (value.is_number_float()) {
      static constexpr std::array kFactors = {-1.0, 0.5, 2.0, 1e3, 1e-3, 1e12, 1e-12, 0.0};
      value = value.get<double>() * kFactors[pick(kFactors.size())];
      return;
    }
    const auto number = value.get<std::uint64_t>();
    switch (pick(6)) {
      case 0:
        value = static_cast<std::int64_t>(number + 1);
        return;
      case 1:
        value = static_cast<std::int64_t>(number - 1);
        return;
      case 2:
        value = static_cast<std::int64_t>(0 - number);
        return;
      case 3:
        value = static_cast<std::int64_t>(number * 2);
        return;
      case 4:
        value = static_cast<std::int64_t>(number ^ (std::uint64_t{1} << pick(63)));
        return;
      default:
        value = static_cast<std::int64_t>(pick(64));
    }
  }

  void edit_text(Json& value) {
    const auto& text = value.get_ref<const std::string&>();
    if (!text.empty() && (text.front() == '{' || text.front() == '[')) {
      Json inner = Json::parse(text, nullptr, false);
      if (!inner.is_discarded()) {
        Mutator(static_cast<std::uint32_t>(random_())).change(inner);
        value = inner.dump(-1, ' ', false, Json::error_handler_t::replace);
        return;
      }
    }
    value = edited(text);
  }

  std::string edited(std::string text) {
    static constexpr std::array<std::string_view, 12> kPieces = {
        "",        "0",   "-1",  "9223372036854775808", "1e309", "[", "],", "{\"a\":1}", "\\u0000",
        "\x1b]0;", "../", "\xff"};
    const std::size_t at = pick(text.size() + 1);
    switch (pick(4)) {
      case 0:
        return text.erase(at);
      case 1:
        return text.insert(at, kPieces[pick(kPieces.size())]);
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(random_());
        return text;
      default:
        return text.insert(at, text.substr(pick(text.size() + 1), 64));
    }
  }

  Json interesting() {
    using Limits = std::numeric_limits<std::int64_t>;
    switch (pick(16)) {
      case 0:
        return nullptr;
      case 1:
        return pick(2) == 0;
      case 2:
        return Json::array();
      case 3:
        return Json::object();
      case 4:
        return "";
      case 5:
        return Limits::max();
      case 6:
        return Limits::min();
      case 7:
        return std::numeric_limits<std::uint64_t>::max();
      case 8:
        return std::int64_t{1} << pick(63);
      case 9:
        return -(std::int64_t{1} << pick(63));
      case 10:
        return 1e308;
      case 11:
        return 5e-324;
      case 12:
        return -0.0;
      case 13:
        return 0.5;
      default:
        return pick(10);
    }
  }

  std::minstd_rand random_;
  std::vector<Node> nodes_;
};

/// nlohmann's parser and destructor take any depth, Mutator and dump() recurse.
bool is_shallow(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' || c == '[' ? 1 : 0;
    depth -= c == '}' || c == ']' ? 1 : 0;
    if (depth > kMostDepth) return false;
  }
  return true;
}

}  // namespace

std::string mutate_json(const std::string& input, std::size_t most_bytes, std::uint32_t seed) {
  if (!is_shallow(input)) return input;
  Json document = Json::parse(input, nullptr, false);
  if (document.is_discarded()) return input;
  Mutator(seed).change(document);
  std::string changed = document.dump(-1, ' ', false, Json::error_handler_t::replace);
  return changed.size() <= most_bytes ? changed : input;
}

std::string mutate_safetensors(const std::string& input, std::size_t most_bytes,
                               std::uint32_t seed) {
  constexpr std::size_t kLengthBytes = 8;
  std::uint64_t length = 0;
  if (input.size() < kLengthBytes || most_bytes < kLengthBytes) return input;
  std::memcpy(&length, input.data(), kLengthBytes);
  if (length > input.size() - kLengthBytes) return input;
  const std::string data = input.substr(kLengthBytes + length);
  if (data.size() + kLengthBytes > most_bytes) return input;
  const std::string header = mutate_json(input.substr(kLengthBytes, length),
                                         most_bytes - kLengthBytes - data.size(), seed);
  const std::uint64_t new_length = header.size();
  std::string changed(kLengthBytes, '\0');
  std::memcpy(changed.data(), &new_length, kLengthBytes);
  return changed + header + data;
}

}  // namespace shardwright::fuzz
