// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "exec/libraries/rules.h"
#include "tests/support/cuda_on_cpu/cublasLt.h"
#include "tests/support/cuda_on_cpu/fake_cuda.h"

// What the library answers for: layouts, transposes, scales, bias, alignments and workspaces, and
// which products in fp8 a GPU has. Its
// algorithms are numbered; the third adds from the end of k, so that its sums have other bits than
// those of the others. A fourth, on machines whose clock knows one, wants operands aligned to 256
// bytes.

struct cublasLtContext {
  int gpu = 0;
};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t transa = CUBLAS_OP_N;
  cublasOperation_t transb = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  cudaDataType_t bias_type = CUDA_R_32F;
  const void* bias = nullptr;
  const void* scales[2] = {};  // of both operands in fp8
  std::int32_t scale_modes[2] = {};
  std::int32_t multiprocessors = 0;  // 0: all
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows, cols, ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};

namespace {

constexpr int kAlgorithms = 4, kBackwards = 2, kAligned = 3;
constexpr std::uint32_t kWideAlignment = 256;
std::atomic<std::int64_t> with_zeros{0};
constexpr std::uint64_t kMagic = 0x5348415244;  // marks algorithms that the heuristic gave

bool is_fp8(cudaDataType_t type) {
  return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

float fp8_value(std::uint8_t code, cudaDataType_t type) {
  const int mantissa_bits = type == CUDA_R_8F_E4M3 ? 3 : 2, bias = type == CUDA_R_8F_E4M3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  if ((code & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits)
                              : std::ldexp(static_cast<float>(mantissa + (1 << mantissa_bits)),
                                           exponent - bias - mantissa_bits);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// Where the documentation of cuBLAS puts the exponent of a block: tiles of 128 x 4, row-major.
std::int64_t exponent_offset(std::int64_t outer, std::int64_t inner, std::int64_t blocks) {
  const std::int64_t inner_dim = (blocks + 3) / 4 * 4;
  const std::int64_t tile = (outer / 128 * 128 * inner_dim) + inner / 4 * 4 * 128;
  return tile + outer % 32 * 16 + outer % 128 / 32 * 4 + inner % 4;
}

/// Scales of an operand in fp8: what the number at `depth` of row or column `outer` is multiplied
/// by within a sum, and what the finished sum is.
struct Scales {
  const void* data;
  std::int32_t mode;
  std::int64_t depth;

  float within(std::int64_t outer, std::int64_t at) const {
    if (data == nullptr || mode != CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) return 1;
    const int exponent =
        static_cast<const std::uint8_t*>(data)[exponent_offset(outer, at / 32, depth / 32)];
    return exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                           : std::ldexp(1.0f, exponent - 127);
  }
  float of_sum(std::int64_t outer) const {
    if (data == nullptr || mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0) return 1;
    return static_cast<const float*>(
        data)[mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F ? outer : 0];
  }
};

struct Operand {
  const void* data;
  cublasLtMatrixLayoutOpaque_t layout;

  float at(std::int64_t row, std::int64_t col) const {
    const std::int64_t i = row + col * layout.ld;
    if (layout.type == CUDA_R_32F) return static_cast<const float*>(data)[i];
    if (is_fp8(layout.type))
      return fp8_value(static_cast<const std::uint8_t*>(data)[i], layout.type);
    const std::uint32_t bits = static_cast<const std::uint16_t*>(data)[i];
    return std::bit_cast<float>(bits << 16);
  }
};

bool is_zero(const Operand& operand) {
  for (std::int64_t col = 0; col < operand.layout.cols; ++col) {
    for (std::int64_t row = 0; row < operand.layout.rows; ++row) {
      if (operand.at(row, col) != 0) return false;
    }
  }
  return true;
}

std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void store(void* data, const cublasLtMatrixLayoutOpaque_t& layout, std::int64_t row,
           std::int64_t col, float value) {
  const std::int64_t i = row + col * layout.ld;
  if (layout.type == CUDA_R_32F) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<std::uint16_t*>(data)[i] = to_bf16(value);
  }
}

bool fits(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
          const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
          const cublasLtMatrixLayoutOpaque_t& d) {
  const bool ta = desc.transa == CUBLAS_OP_T, tb = desc.transb == CUBLAS_OP_T;
  const std::int64_t m = ta ? a.cols : a.rows, k = ta ? a.rows : a.cols;
  const std::int64_t n = tb ? b.rows : b.cols, l = tb ? b.cols : b.rows;
  return k == l && d.rows == m && d.cols == n && c.rows == m && c.cols == n && c.type == d.type &&
         (a.type == b.type || (is_fp8(a.type) && is_fp8(b.type)));
}

/// Where scales of rows have no algorithm on H100.
std::int64_t hole(const char* value) {
  return shardwright::exec::libraries::rule_number("cublas_lt.rowwise_hole", value);
}

/// What the documentation of cublasLtMatmul says of fp8: sizes, layouts and scales by GPU.
bool multiplies(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
                const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& d) {
  if (!is_fp8(a.type)) return true;
  cudaDeviceProp gpu{};
  cudaGetDeviceProperties(&gpu, cuda_on_cpu::current_gpu());
  const int capability = 10 * gpu.major + gpu.minor;
  const bool tn = desc.transa == CUBLAS_OP_T && desc.transb == CUBLAS_OP_N;
  const bool both_ways = gpu.major == 10 || gpu.major == 11;
  const std::int32_t mode = desc.scale_modes[0];
  const bool scales = mode == desc.scale_modes[1] &&
                      (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F ||
                       (mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F && capability == 90 &&
                        tn && !(d.cols <= hole("most_rows") && a.rows >= hole("least_depth"))) ||
                       (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 && capability >= 100 &&
                        tn && a.rows % 32 == 0));
  return capability >= 89 && scales && (tn || both_ways) &&
         !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && a.rows % 16 == 0 &&
         a.cols % 16 == 0 && d.cols % 16 == 0 && desc.scales[0] != nullptr &&
         desc.scales[1] != nullptr;
}

template <class T>
cublasStatus_t make(T** made, T value) {
  *made = new (std::nothrow) T(value);
  return *made == nullptr ? CUBLAS_STATUS_ALLOC_FAILED : CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroy(T* value) {
  delete value;
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(T& to, const void* value, std::size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

std::int64_t cuda_on_cpu::products_of_zeros() {
  return with_zeros;
}

const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                 : "CUBLAS_STATUS_EXECUTION_FAILED";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  return cublasLtGetStatusName(status);
}
std::size_t cublasLtGetVersion() {
  return 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  cuda_on_cpu::Call made;
  made.kind = cuda_on_cpu::CallKind::kCreate;  // loads the library
  made.name = "cublasLtCreate";
  cuda_on_cpu::log_call(std::move(made));
  return make(handle, cublasLtContext{cuda_on_cpu::current_gpu()});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy(handle);
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t,
                                        cudaDataType_t) {
  return make(desc, cublasLtMatmulDescOpaque_t{});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  return destroy(desc);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(desc->transa, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(desc->transb, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(desc->scales[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(desc->scales[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
      return set(desc->scale_modes[0], value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      return set(desc->scale_modes[1], value, bytes);
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      return set(desc->multiprocessors, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return set(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  if (ld < static_cast<std::int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  return make(layout, cublasLtMatrixLayoutOpaque_t{type, static_cast<std::int64_t>(rows),
                                                   static_cast<std::int64_t>(cols), ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(preference, cublasLtMatmulPreferenceOpaque_t{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return bytes == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference->alignment[3], value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* returned) {
  *returned = 0;
  cuda_on_cpu::Call asked;
  asked.name = "cublasLtMatmulAlgoGetHeuristic";
  asked.grid.x = static_cast<unsigned>(desc->multiprocessors);
  cuda_on_cpu::log_call(std::move(asked));
  if (handle->gpu != cuda_on_cpu::current_gpu()) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!fits(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!multiplies(*desc, *a, *b, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < kAlgorithms && i < requested; ++i) {
    const bool is_aligned =
        std::all_of(std::begin(preference->alignment), std::end(preference->alignment),
                    [](std::uint32_t alignment) { return alignment >= kWideAlignment; });
    if (i == kAligned && !(is_aligned && cuda_on_cpu::product_time_ns(kAligned) > 0)) continue;
    cublasLtMatmulHeuristicResult_t& result = results[(*returned)++];
    result = {};
    result.algo.data[0] = kMagic;
    result.algo.data[1] = static_cast<std::uint64_t>(i);
    for (int operand = 0; operand < 4; ++operand) {
      result.algo.data[2 + operand] = preference->alignment[operand];
    }
    // The first one splits the sum, as far as there is room.
    result.workspaceSize =
        i == 0 ? std::min<std::size_t>(static_cast<std::size_t>(d->rows * d->cols) * 4,
                                       preference->workspace_bytes)
               : 0;
    result.algo.data[6] = result.workspaceSize;
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1;
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!fits(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_INVALID_VALUE;
  if (algo->data[0] != kMagic || algo->data[1] >= kAlgorithms) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {};
  result->algo = *algo;
  result->workspaceSize = algo->data[6];
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  if (!fits(*desc, *a_layout, *b_layout, *c_layout, *d_layout) ||
      !multiplies(*desc, *a_layout, *b_layout, *d_layout) || algo == nullptr ||
      algo->data[0] != kMagic || algo->data[6] > workspace_bytes ||
      (algo->data[6] > 0 && workspace == nullptr)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // A handle belongs to one GPU, and so does what it works on.
  const void* reached[] = {a, b, c, d, workspace};
  if (handle->gpu != cuda_on_cpu::current_gpu() ||
      !std::all_of(std::begin(reached), std::end(reached), [&](const void* data) {
        return data == nullptr || cuda_on_cpu::reaches(handle->gpu, data);
      })) {
    return CUBLAS_STATUS_EXECUTION_FAILED;
  }
  const void* operands[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<std::uintptr_t>(operands[i]) % algo->data[2 + i] != 0) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  const Operand left{a, *a_layout}, right{b, *b_layout}, added{c, *c_layout};
  const cublasLtMatrixLayoutOpaque_t out = *d_layout;
  const cublasLtMatmulDescOpaque_t what = *desc;
  const float scale = *static_cast<const float*>(alpha);
  const float keep = *static_cast<const float*>(beta);
  const bool ta = what.transa == CUBLAS_OP_T, tb = what.transb == CUBLAS_OP_T;
  const std::int64_t depth = ta ? left.layout.rows : left.layout.cols;
  const Scales left_scales{what.scales[0], what.scale_modes[0], depth};
  const Scales right_scales{what.scales[1], what.scale_modes[1], depth};
  cuda_on_cpu::Call call;
  call.name = "cublasLtMatmul";
  call.to = d;
  call.from = a;
  call.bytes = workspace_bytes;
  const std::size_t used = algo->data[6];
  const bool backwards = algo->data[1] == kBackwards;
  const std::int64_t taken_ns = cuda_on_cpu::product_time_ns(algo->data[1]);
  call.algorithm = static_cast<int>(algo->data[1]);
  const cudaError_t error = cuda_on_cpu::enqueue_kernel(stream, call, [=] {
    cuda_on_cpu::pass_time(taken_ns);
    // Whoever still needs the workspace finds it spoilt.
    if (used > 0) std::memset(workspace, 0xff, used);
    if (is_zero(left) || is_zero(right)) ++with_zeros;
    const bool biased = what.epilogue == CUBLASLT_EPILOGUE_BIAS;
    const Operand bias{what.bias, {what.bias_type, out.rows, 1, out.rows}};
    for (std::int64_t col = 0; col < out.cols; ++col) {
      for (std::int64_t row = 0; row < out.rows; ++row) {
        float sum = 0;
        for (std::int64_t step = 0; step < depth; ++step) {
          const std::int64_t i = backwards ? depth - 1 - step : step;
          sum += (ta ? left.at(i, row) : left.at(row, i)) * left_scales.within(row, i) *
                 ((tb ? right.at(col, i) : right.at(i, col)) * right_scales.within(col, i));
        }
        sum *= scale * left_scales.of_sum(row) * right_scales.of_sum(col);
        if (keep != 0) sum += keep * added.at(row, col);
        if (biased) sum += bias.at(row, 0);
        store(d, out, row, col, sum);
      }
    }
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
