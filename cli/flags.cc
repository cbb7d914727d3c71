#include "cli/flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "sim/core/error.h"

namespace shardwright::cli {
namespace {

std::string range_text(CountRange range) {
  return range.most == CountRange{}.most ? fmt::format("at least {}", range.least)
                                         : fmt::format("from {} to {}", range.least, range.most);
}

std::string range_text(NumberRange range) {
  const NumberRange all;
  if (range.most == all.most && range.least == all.least) return "finite";
  if (range.most == all.most) return fmt::format("at least {}", range.least);
  if (range.least == all.least) return fmt::format("at most {}", range.most);
  return fmt::format("from {} to {}", range.least, range.most);
}

// std::from_chars takes no leading '+', which people do write.
std::string_view without_plus(std::string_view text) {
  return text.size() > 1 && text[0] == '+' && text[1] != '-' ? text.substr(1) : text;
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
  const std::string_view digits = without_plus(text);
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && end == digits.data() + digits.size();
  if (whole && code == std::errc::result_out_of_range) {
    throw Error(fmt::format("{} is {}, which is too large for any size; it must be {}.", flag, text,
                            range_text(range)));
  }
  if (!whole || code != std::errc{}) {
    throw Error(
        fmt::format("{} is '{}', but it must be a whole number {}.", flag, text, range_text(range)),
        ExitCode::kUsage);
  }
  if (value < range.least || value > range.most) {
    throw Error(fmt::format("{} is {}, but it must be {}.", flag, text, range_text(range)));
  }
  return value;
}

double parse_number(std::string_view flag, std::string_view text, NumberRange range) {
  const std::string_view digits = without_plus(text);
  double value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = !digits.empty() && end == digits.data() + digits.size();
  if (!whole || code == std::errc::invalid_argument) {
    throw Error(
        fmt::format("{} is '{}', but it must be a number, {}.", flag, text, range_text(range)),
        ExitCode::kUsage);
  }
  if (code != std::errc{} || !std::isfinite(value) || value < range.least || value > range.most) {
    throw Error(fmt::format("{} is {}, but it must be {}.", flag, text, range_text(range)));
  }
  return value;
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
                        const std::string& description, NumberRange range) {
  return add_parsed(command, flag, value, description, "X", [flag, range](const std::string& text) {
    return parse_number(flag, text, range);
  });
}

CLI::Option* add_number(CLI::App& command, const std::string& flag, std::optional<double>& value,
                        const std::string& description, NumberRange range) {
  return add_parsed(command, flag, value, description, "X", [flag, range](const std::string& text) {
    return parse_number(flag, text, range);
  });
}

}  // namespace shardwright::cli
