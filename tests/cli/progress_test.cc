// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/render/text/terminal.h"

namespace shardwright::cli {
namespace {

using std::chrono::milliseconds;

// What a Progress of 10 steps writes, with a clock that advances `step` before each update.
std::string written(const Terminal& terminal, milliseconds step, int updates) {
  char* buffer = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&buffer, &size);
  Progress::Clock::time_point now{};
  {
    Progress progress(terminal, "validate", 10, stream, [&now] { return now; });
    for (int done = 1; done <= updates; ++done) {
      now += step;
      progress.update(done);
    }
  }
  std::fclose(stream);
  std::string text(buffer, size);
  std::free(buffer);  // NOLINT: open_memstream allocates with malloc
  return text;
}

TEST(Progress, WritesNothingWhereNobodyWatches) {
  EXPECT_EQ(written(Terminal{.interactive = false}, milliseconds{500}, 10), "");
}

TEST(Progress, RewritesOneLineAndWipesIt) {
  const std::string text =
      written(Terminal{.interactive = true, .columns = 80}, milliseconds{500}, 2);
  const std::string first = "validate 1/10 [##..................] 10 %";
  const std::string second = "validate 2/10 [####................] 20 %, 4 s left";
  EXPECT_EQ(text, "\r" + first + "\r" + second + "\r" + std::string(second.size(), ' ') + "\r");
}

TEST(Progress, DrawsAtMostTenTimesASecond) {
  const std::string text =
      written(Terminal{.interactive = true, .columns = 80}, milliseconds{30}, 10);
  // 300 ms in all: drawn at 120 ms and 240 ms, then wiped with two more returns.
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 4);
}

TEST(Progress, NeverAsWideAsTheTerminal) {
  const std::string text =
      written(Terminal{.interactive = true, .columns = 40}, milliseconds{500}, 1);
  EXPECT_EQ(text.find('\r', 1), 40U);
}

}  // namespace
}  // namespace shardwright::cli
