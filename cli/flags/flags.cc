#include "cli/flags/flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>

#include "sim/core/error.h"
#include "sim/core/parse_number.h"

namespace shardwright::cli {
namespace {

std::string range_text(CountRange range) {
  return range.most == CountRange{}.most ? fmt::format("of at least {}", range.least)
                                         : fmt::format("from {} to {}", range.least, range.most);
}

std::string range_text(RealRange range) {
  const RealRange all;
  if (range.most == all.most && range.least == all.least) return "finite";
  if (range.most == all.most) return fmt::format("at least {}", range.least);
  if (range.least == all.least) return fmt::format("at most {}", range.most);
  return fmt::format("from {} to {}", range.least, range.most);
}

bool is_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& flag, Value& value,
                        const std::string& description, const char* type, Parse parse) {
  CLI::Option* option = command.add_option_function<std::string>(
      flag, [&value, parse](const std::string& text) { value = parse(text); }, description);
  option->type_name(type);
  return option;
}

}  // namespace

std::int64_t parse_count(std::string_view flag, std::string_view text, CountRange range) {
  const std::optional<std::int64_t> value = parse_int64(text);
  if (value && *value >= range.least && *value <= range.most) return *value;
  if (value || is_digits(text) || parse_double(text)) {
    throw Error(
        fmt::format("{} is {}, but it must be a whole number {}.", flag, text, range_text(range)));
  }
  throw Error(
      fmt::format("{} is '{}', but it must be a whole number {}.", flag, text, range_text(range)),
      ExitCode::kUsage);
}

double parse_number(std::string_view flag, std::string_view text, RealRange range) {
  const std::optional<double> value = parse_double(text);
  if (!value) {
    throw Error(
        fmt::format("{} is '{}', but it must be a number, {}.", flag, text, range_text(range)),
        ExitCode::kUsage);
  }
  if (*value < range.least || *value > range.most) {
    throw Error(fmt::format("{} is {}, but it must be {}.", flag, text, range_text(range)));
  }
  return *value;
}

CLI::Option* add_count(CLI::App& command, const std::string& flag, std::int64_t& value,
                       const std::string& description, CountRange range) {
  return add_parsed(command, flag, value, description, "N", [flag, range](const std::string& text) {
    return parse_count(flag, text, range);
  });
}

CLI::Option* add_count(CLI::App& command, const std::string& flag,
                       std::optional<std::int64_t>& value, const std::string& description,
                       CountRange range) {
  return add_parsed(command, flag, value, description, "N", [flag, range](const std::string& text) {
    return parse_count(flag, text, range);
  });
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, double& value,
                        const std::string& description, RealRange range) {
  return add_parsed(command, flag, value, description, "X", [flag, range](const std::string& text) {
    return parse_number(flag, text, range);
  });
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, std::optional<double>& value,
                        const std::string& description, RealRange range) {
  return add_parsed(command, flag, value, description, "X", [flag, range](const std::string& text) {
    return parse_number(flag, text, range);
  });
}

}  // namespace shardwright::cli
