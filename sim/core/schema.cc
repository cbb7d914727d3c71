#include "sim/core/schema.h"

#include <fmt/core.h>

#include <charconv>
#include <optional>
#include <string>

#include "sim/core/error.h"

namespace shardwright {
namespace {

/// The major version of "NAME/MAJOR.MINOR", or none when the text is something else.
std::optional<int> major_of(std::string_view schema, std::string_view name) {
  if (!schema.starts_with(name)) return std::nullopt;
  schema.remove_prefix(name.size());
  if (!schema.starts_with('/')) return std::nullopt;
  schema.remove_prefix(1);
  const char* end = schema.data() + schema.size();
  int major = 0;
  int minor = 0;
  const auto [dot, first_error] = std::from_chars(schema.data(), end, major);
  if (first_error != std::errc() || dot == end || *dot != '.' || major < 0) return std::nullopt;
  const auto [stop, second_error] = std::from_chars(dot + 1, end, minor);
  if (second_error != std::errc() || stop != end || minor < 0) return std::nullopt;
  return major;
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
