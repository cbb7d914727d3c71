// SPDX-License-Identifier: Apache-2.0
// exec/cuda/products.cc against the library itself, which describes products without a GPU and
// refuses to work: each of its functions is found and takes what its name says.
#include <cublasLt.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace {

bool is_loaded() {
  return dlopen(SHARDWRIGHT_CUBLAS_LT, RTLD_LAZY | RTLD_NOLOAD) != nullptr;
}

TEST(CublasLt, IsLoadedWhenItIsFirstCalled) {
  if (is_loaded()) GTEST_SKIP() << "a test before this one called it";
  EXPECT_EQ(cublasLtGetVersion() / 10000, CUBLAS_VER_MAJOR);
  EXPECT_TRUE(is_loaded());
}

TEST(CublasLt, SaysWhatAStatusIs) {
  EXPECT_STREQ(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED), "CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_NE(std::string(cublasLtGetStatusString(CUBLAS_STATUS_NOT_SUPPORTED)),
            cublasLtGetStatusString(CUBLAS_STATUS_SUCCESS));
}

TEST(CublasLt, TakesWhatItIsToldOfAProductAndComputesNoneWithoutAHandle) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const auto set = [&](std::size_t bytes) {
    return cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, bytes);
  };
  EXPECT_EQ(set(sizeof transposed), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(set(1), CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatrixLayout_t layout = nullptr;
  ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, 64, 64, 64), CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const std::size_t room = 1 << 20;
  EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room),
            CUBLAS_STATUS_SUCCESS);

  cublasLtMatmulHeuristicResult_t result = {};
  int count = 0;
  const float one = 1;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(nullptr, desc, layout, layout, layout, layout,
                                           preference, 1, &result, &count),
            CUBLAS_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cublasLtMatmul(nullptr, desc, &one, nullptr, layout, nullptr, layout, &one, nullptr,
                           layout, nullptr, layout, nullptr, nullptr, 0, nullptr),
            CUBLAS_STATUS_NOT_INITIALIZED);

  EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
}

TEST(CublasLt, MakesAHandleOnlyForAGpu) {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t made = cublasLtCreate(&handle);
  if (made == CUBLAS_STATUS_SUCCESS) {
    EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  } else {
    EXPECT_EQ(made, CUBLAS_STATUS_NOT_INITIALIZED);
    EXPECT_EQ(cublasLtDestroy(nullptr), CUBLAS_STATUS_INVALID_VALUE);
  }
}

TEST(CublasLt, TakesWhatItIsToldOfProductsInFp8) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    return cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
  };
  const float scale = 1;
  const void* where = &scale;
  for (const auto attribute :
       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER})
    EXPECT_EQ(set(attribute, where), CUBLAS_STATUS_SUCCESS);
  for (const std::int32_t mode :
       {CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0}) {
    EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode), CUBLAS_STATUS_SUCCESS);
  }
  EXPECT_EQ(set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, std::int64_t{0}), CUBLAS_STATUS_INVALID_VALUE);
  for (const cudaDataType_t type : {CUDA_R_8F_E4M3, CUDA_R_8F_E5M2}) {
    cublasLtMatrixLayout_t layout = nullptr;
    ASSERT_EQ(cublasLtMatrixLayoutCreate(&layout, type, 64, 32, 64), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
  }
  EXPECT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
}

}  // namespace
