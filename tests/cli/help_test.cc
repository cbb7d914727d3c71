#include "cli/flags/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace shardwright::cli {
namespace {

// A long description continues under itself, and a long name has a line of its own.
TEST(Help, WrapsDescriptions) {
  CLI::App app{"", "x"};
  app.formatter(make_help_formatter());
  app.add_flag(
      "-n,--nothing", [](std::int64_t) {}, std::string(60, 'a') + " " + std::string(60, 'b'));
  app.add_flag(
      "--a-name-that-is-longer-than-its-column", [](std::int64_t) {}, "short");
  const std::string indent(34, ' ');
  EXPECT_THAT(app.help(),
              ::testing::HasSubstr("  -n, --nothing" + std::string(19, ' ') + std::string(60, 'a') +
                                   "\n" + indent + std::string(60, 'b') + "\n"));
  EXPECT_THAT(app.help(), ::testing::HasSubstr("  --a-name-that-is-longer-than-its-column\n" +
                                               indent + "short\n"));
}

}  // namespace
}  // namespace shardwright::cli
