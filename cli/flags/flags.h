// Numeric flags read strictly.
//
// CLI11 reads "010" as eight, lets 99999999999999999999 saturate and accepts nan. These helpers
// read the whole word as one decimal number ("4096", "2e12") and say in one sentence which flag,
// which value and what is accepted: a word that is no number is wrong usage (exit code 2), a number
// that the flag cannot take is a bad value (exit code 3).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shardwright::cli {

struct CountRange {
  std::int64_t least = 1;
  std::int64_t most = std::numeric_limits<std::int64_t>::max();
};

struct RealRange {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
};

/// A whole number within `range`; `flag` is the name used in the sentence of the Error.
std::int64_t parse_count(std::string_view flag, std::string_view text, CountRange range = {});
/// A finite decimal number within `range`.
double parse_number(std::string_view flag, std::string_view text, RealRange range = {});

/// Flags bound to a variable, which keeps its value when the flag is not given.
CLI::Option* add_count(CLI::App& command, const std::string& flag, std::int64_t& value,
                       const std::string& description, CountRange range = {});
CLI::Option* add_count(CLI::App& command, const std::string& flag,
                       std::optional<std::int64_t>& value, const std::string& description,
                       CountRange range = {});
CLI::Option* add_number(CLI::App& command, const std::string& flag, double& value,
                        const std::string& description, RealRange range = {});
CLI::Option* add_number(CLI::App& command, const std::string& flag, std::optional<double>& value,
                        const std::string& description, RealRange range = {});

}  // namespace shardwright::cli
