// SPDX-License-Identifier: Apache-2.0
// cuBLASLt by its first call.
#include <cublasLt.h>

#include "exec/libraries/loaded_library.h"

namespace {

shardwright::exec::libraries::LoadedLibrary cublas_lt_library("cuBLASLt", SHARDWRIGHT_CUBLAS_LT,
                                                              SHARDWRIGHT_CUBLAS_LT_FOLDER);

}  // namespace

extern "C" {

std::size_t cublasLtGetVersion() {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtGetVersion);
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtGetStatusName, status);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtGetStatusString, status);
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtCreate, handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtDestroy, handle);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulDescCreate, desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulDescDestroy, desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulDescSetAttribute, desc, attribute, value,
                      bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t stride) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatrixLayoutCreate, layout, type, rows, cols,
                      stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatrixLayoutDestroy, layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulPreferenceCreate, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulPreferenceDestroy, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulPreferenceSetAttribute, preference,
                      attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmulAlgoGetHeuristic, handle, desc, a, b, c, d,
                      preference, wanted, results, count);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(cublas_lt_library, cublasLtMatmul, handle, desc, alpha, a, a_layout, b,
                      b_layout, beta, c, c_layout, d, d_layout, algo, workspace, workspace_bytes,
                      stream);
}

}  // extern "C"
