// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cli/render/text/quantity.h"
#include "cli/render/text/table.h"
#include "cli/text.h"

namespace shardwright::cli {
namespace {

TEST(Bar, IsAsLongAsItsShare) {
  const Terminal ascii{};
  EXPECT_EQ(bar(0.5, 10, ascii), "#####");
  EXPECT_EQ(bar(1, 10, ascii), "##########");
  EXPECT_EQ(bar(7, 10, ascii), "##########");
  const Terminal utf8{.utf8 = true};
  EXPECT_EQ(bar(0.25, 10, utf8), "██▌");
  EXPECT_EQ(display_width(bar(1, 10, utf8)), 10);
}

TEST(Bar, ShowsSomethingForAlmostNothing) {
  EXPECT_EQ(bar(1e-6, 10, Terminal{}), "#");
  EXPECT_EQ(bar(1e-6, 10, Terminal{.utf8 = true}), "▏");
  EXPECT_EQ(bar(0, 10, Terminal{}), "");
}

TEST(Percent, HasTheDecimalsAskedFor) {
  EXPECT_EQ(percent(0.3961), "39.6 %");
  EXPECT_EQ(percent(0.3961, 0), "40 %");
}

}  // namespace
}  // namespace shardwright::cli
