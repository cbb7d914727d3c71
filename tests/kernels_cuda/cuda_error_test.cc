// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/base/error.h"

namespace shardwright::kernels::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CudaErrors, CarryTheCallThePlaceAndCudasText) {
  SHARDWRIGHT_CUDA(cudaSuccess);
  const auto failing_call = [](int) { return cudaErrorMemoryAllocation; };
  try {
    SHARDWRIGHT_CUDA(failing_call(7));
    FAIL() << "no failure";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kFailed);
    EXPECT_THAT(error.what(), HasSubstr("failing_call(7) failed at cuda_error_test.cc:"));
    EXPECT_THAT(error.what(), HasSubstr(cudaGetErrorString(cudaErrorMemoryAllocation)));
    EXPECT_THAT(error.what(), HasSubstr("(cudaErrorMemoryAllocation)"));
    EXPECT_THAT(error.what(), Not(HasSubstr("/")));  // no folders of the machine that built it
  }
}

}  // namespace
}  // namespace shardwright::kernels::cuda
