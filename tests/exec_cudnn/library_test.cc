// SPDX-License-Identifier: Apache-2.0
// What makes cuDNN useless before any graph is built, each told as its own reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/cudnn/graph.h"

namespace shardwright::exec::cudnn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Releases before 9.6 leave the zeroing of dQ's sums to the caller, and nobody zeroes them.
TEST(CudnnLibrary, OfAnOldReleaseIsRefused) {
  for (const std::size_t old :
       {std::size_t{8907}, std::size_t{90100}, std::size_t{90501}, std::size_t{90799}}) {
    EXPECT_THAT(version_refusal(old), HasSubstr("expected 9.8.0 or newer")) << old;
  }
  EXPECT_EQ(version_refusal(90501),
            "is version 9.5.1, expected 9.8.0 or newer: older ones add to sums of dQ that nobody "
            "zeroed");
  EXPECT_EQ(version_refusal(90800), "");
  EXPECT_EQ(version_refusal(91900), "");
}

// Their backward pass would count what lies behind the last tokens.
TEST(CudnnLibrary, OfReleasesThatReadBeyondASequenceTakesWholeTiles) {
  EXPECT_EQ(length_refusal(91300, 4096), "");
  EXPECT_EQ(length_refusal(91501, 1000), "");
  EXPECT_EQ(length_refusal(91900, 1000), "");
  EXPECT_EQ(length_refusal(91500, 1000),
            "of version 9.15.0 takes sequences of multiples of 128 tokens, not 1000: newer than "
            "9.15.0 takes any");
}

TEST(CudnnLibrary, WithoutItsCompilerIsRefusedByTheCompilersName) {
  EXPECT_THAT(compiler_refusal("libnvrtc.so.99"),
              AllOf(HasSubstr("NVRTC"), HasSubstr("libnvrtc.so.99"), HasSubstr("LD_LIBRARY_PATH")));
}

}  // namespace
}  // namespace shardwright::exec::cudnn
