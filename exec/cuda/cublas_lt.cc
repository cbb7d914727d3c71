// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, loaded by the first call of it.
//
// The library has half a gigabyte and 390 thousand addresses that the loader must put right, 60 ms
// of every start of a program that links it, also where no product is computed. So the program does
// not link it: it brings these functions, each of which passes its arguments on to the library's
// own of that name. They throw Error (ExitCode::kMissingDevice) where there is no library.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <string>

#include "sim/core/error.h"

namespace shardwright::exec::cuda {
namespace {

void* cublas_library() {
  // Never unloaded, like any that is linked. Its folder at the build comes last.
  static void* const library = [] {
    void* opened = dlopen(SHARDWRIGHT_CUBLAS_LT, RTLD_LAZY | RTLD_LOCAL);
    if (opened != nullptr) return opened;
    const std::string why = dlerror();
    opened = dlopen(SHARDWRIGHT_CUBLAS_LT_FOLDER "/" SHARDWRIGHT_CUBLAS_LT, RTLD_LAZY | RTLD_LOCAL);
    if (opened != nullptr) return opened;
    throw Error(fmt::format("cuBLASLt cannot be loaded: {}; expected it in a folder of the system "
                            "or of LD_LIBRARY_PATH.",
                            why),
                ExitCode::kMissingDevice);
  }();
  return library;
}

/// The library's function of that name; `Function` is its type.
template <class Function>
Function* cublas_function(const char* name) {
  void* const symbol = dlsym(cublas_library(), name);
  if (symbol == nullptr) {
    throw Error(fmt::format("{} has no function {}.", SHARDWRIGHT_CUBLAS_LT, name),
                ExitCode::kMissingDevice);
  }
  return reinterpret_cast<Function*>(symbol);
}

}  // namespace
}  // namespace shardwright::exec::cuda

// The function of cuBLASLt that is being defined, with all its arguments. A macro, because its name
// is needed as a word and as a type.
#define SHARDWRIGHT_PASS_ON(name, ...)                                   \
  static decltype(name)* const function =                                \
      ::shardwright::exec::cuda::cublas_function<decltype(name)>(#name); \
  return function(__VA_ARGS__)

extern "C" {

std::size_t cublasLtGetVersion() {
  SHARDWRIGHT_PASS_ON(cublasLtGetVersion);
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  SHARDWRIGHT_PASS_ON(cublasLtGetStatusName, status);
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  SHARDWRIGHT_PASS_ON(cublasLtGetStatusString, status);
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  SHARDWRIGHT_PASS_ON(cublasLtCreate, handle);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  SHARDWRIGHT_PASS_ON(cublasLtDestroy, handle);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulDescCreate, desc, compute, scale);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulDescDestroy, desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulDescSetAttribute, desc, attribute, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t cols,
                                          std::int64_t stride) {
  SHARDWRIGHT_PASS_ON(cublasLtMatrixLayoutCreate, layout, type, rows, cols, stride);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  SHARDWRIGHT_PASS_ON(cublasLtMatrixLayoutDestroy, layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulPreferenceCreate, preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulPreferenceDestroy, preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmulAlgoGetHeuristic, handle, desc, a, b, c, d, preference, wanted,
                      results, count);
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(cublasLtMatmul, handle, desc, alpha, a, a_layout, b, b_layout, beta, c,
                      c_layout, d, d_layout, algo, workspace, workspace_bytes, stream);
}

}  // extern "C"

#undef SHARDWRIGHT_PASS_ON
