// SPDX-License-Identifier: Apache-2.0
#include "profiles/edit_value.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "sim/core/base/error.h"

namespace shardwright::profiles {
namespace {

using nlohmann::ordered_json;

[[noreturn]] void fail(const std::string& name, std::string_view path) {
  throw Error(
      fmt::format("{}: {} is not on a line of its own, expected \"{}\": {{\"value\": ..}} "
                  "there",
                  name, path, path.substr(path.rfind('.') + 1)));
}

/// Where the line that begins with "key": starts, after `from`, at this depth of indentation.
std::size_t find_key(std::string_view text, std::size_t from, std::size_t until, std::size_t depth,
                     std::string_view key) {
  const std::string start = fmt::format("\n{:{}}\"{}\": {{", "", 2 * depth, key);
  const std::size_t at = text.substr(0, until).find(start, from);
  return at == text.npos ? text.npos : at + start.size() - 1;
}

/// The object as the files write it: a space after each colon and comma.
std::string one_line(const ordered_json& object) {
  std::string line;
  for (const auto& [key, value] : object.items()) {
    line += fmt::format("{}\"{}\": {}", line.empty() ? "" : ", ", key, value.dump());
  }
  return "{" + line + "}";
}

}  // namespace

std::string with_value(std::string_view text, const std::string& name, std::string_view path,
                       double value, const Origin& origin) {
  std::size_t begin = 0, end = text.size();
  std::string_view rest = path;
  for (std::size_t depth = 1;; ++depth) {
    const std::size_t dot = rest.find('.');
    begin = find_key(text, begin, end, depth, rest.substr(0, dot));
    if (begin == text.npos) fail(name, path);
    if (dot == rest.npos) break;
    if (text.substr(begin + 1, 1) != "\n") fail(name, path);
    end = text.find(fmt::format("\n{:{}}}}", "", 2 * depth), begin);
    if (end == text.npos) fail(name, path);
    rest.remove_prefix(dot + 1);
  }
  end = text.find('\n', begin);
  if (end == text.npos) fail(name, path);
  if (text[end - 1] == ',') --end;
  ordered_json object = ordered_json::parse(text.substr(begin, end - begin), nullptr, false);
  if (!object.is_object() || !object.contains("value")) fail(name, path);
  object["value"] = value;
  object["source"] = origin.source;
  object["confidence"] = origin.confidence;
  object["date"] = origin.date;
  return fmt::format("{}{}{}", text.substr(0, begin), one_line(object), text.substr(end));
}

}  // namespace shardwright::profiles
