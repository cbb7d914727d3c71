// SPDX-License-Identifier: Apache-2.0
#include "sim/core/base/schema.h"

#include <fmt/core.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright {
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
