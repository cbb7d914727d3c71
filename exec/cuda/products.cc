// SPDX-License-Identifier: Apache-2.0
#include "exec/cuda/products.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "exec/cuda/cuda_device.h"
#include "exec/cuda/handles.h"
#include "exec/executor.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/plan.h"

namespace shardwright::exec::cuda {

namespace {

constexpr int kTimedRounds = 3, kRunsOfARound = 4;
/// Another algorithm than the first is taken where it takes at most this share of the time: less is
/// noise.
constexpr double kWorthwhile = 0.99;

template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* value) const {
    kDestroy(value);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType_t type_of(DType dtype) {
  SHARDWRIGHT_CHECK(dtype == DType::kFp32 || dtype == DType::kBf16, "a product of {}",
                    name_of(dtype));
  return dtype == DType::kFp32 ? CUDA_R_32F : CUDA_R_16BF;
}

cudaDataType_t type_of(kernels::Fp8Format format) {
  return format == kernels::Fp8Format::kE4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

/// The row-major matrix as a column-major one: cols x rows.
Layout layout_of(const Matrix& m, cudaDataType_t type) {
  cublasLtMatrixLayout_t layout = nullptr;
  SHARDWRIGHT_CUBLAS(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(m.cols),
                                                static_cast<std::uint64_t>(m.rows), m.stride));
  return Layout(layout);
}

/// 256 where the address has it: what the library takes for granted unless it is told less, which
/// excludes algorithms. Otherwise the largest power of two up to the 16 bytes of a vector.
std::uint32_t alignment_of(const void* data) {
  constexpr std::uint32_t kWhole = 256;
  if (reinterpret_cast<std::uintptr_t>(data) % kWhole == 0) return kWhole;
  std::uint32_t alignment = 16;
  while (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) alignment /= 2;
  return alignment;
}

template <class T>
void set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  SHARDWRIGHT_CUBLAS(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value));
}

template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const T& value) {
  SHARDWRIGHT_CUBLAS(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
}

/// Scales of rows are those of both operands; the library's first one is our second.
void set_scale_modes(cublasLtMatmulDesc_t desc, const Fp8Operands& fp8) {
  if (fp8.a.scaling == kernels::Fp8Scaling::kTensor) return;  // what it takes for granted
  const std::int32_t mode = fp8.a.scaling == kernels::Fp8Scaling::kRows
                                ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
}

void set_scales(cublasLtMatmulDesc_t desc, const Fp8Operands& fp8) {
  const auto scales = [](const kernels::Fp8Matrix& m) -> const void* {
    return m.scaling == kernels::Fp8Scaling::kTensor ? m.floats() + 1 : m.scales;
  };
  set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales(fp8.b));
  set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales(fp8.a));
}

/// "fp8 e5m2 e4m3 tensor", or nothing.
std::string fp8_words(const std::optional<Fp8Operands>& fp8) {
  if (!fp8) return "";
  constexpr const char* kScalings[] = {"tensor", "rows", "blocks"};
  const auto format = [](const kernels::Fp8Matrix& m) {
    return m.format == kernels::Fp8Format::kE4M3 ? "e4m3" : "e5m2";
  };
  return fmt::format("fp8 {} {} {}", format(fp8->a), format(fp8->b),
                     kScalings[static_cast<int>(fp8->a.scaling)]);
}

std::int64_t depth_of(const Product& p) {
  return p.form == ProductForm::kTN ? p.a.rows : p.a.cols;
}

void check_shapes(const Product& p) {
  const bool ta = p.form == ProductForm::kTN, tb = p.form == ProductForm::kNT;
  SHARDWRIGHT_CHECK(
      (ta ? p.a.cols : p.a.rows) == p.out.rows && (tb ? p.b.rows : p.b.cols) == p.out.cols &&
          (tb ? p.b.cols : p.b.rows) == depth_of(p) && p.a.dtype == p.b.dtype,
      "a product of {}x{} {} and {}x{} {} into {}x{}", p.a.rows, p.a.cols, name_of(p.a.dtype),
      p.b.rows, p.b.cols, name_of(p.b.dtype), p.out.rows, p.out.cols);
}

}  // namespace

Product fp8_product_of(const kernels::Fp8Matrix& a, const kernels::Fp8Matrix& b, Matrix out) {
  SHARDWRIGHT_CHECK(a.cols == b.cols && a.scaling == b.scaling && (!a.turned || b.turned),
                    "a product in fp8 of {} x {} and {} x {}", a.rows, a.cols, b.rows, b.cols);
  // Codes count as elements; the type of their matrices is looked at nowhere.
  const auto codes = [](const kernels::Fp8Matrix& m) {
    return m.turned ? Matrix(m.codes, DType::kBf16, m.cols, m.rows)
                    : Matrix(m.codes, DType::kBf16, m.rows, m.cols);
  };
  Product product;
  product.form = a.turned ? ProductForm::kTN : b.turned ? ProductForm::kNN : ProductForm::kNT;
  product.a = codes(a);
  product.b = codes(b);
  product.out = out;
  product.fp8 = {a, b};
  return product;
}

struct Products::Plan {
  Description description;
  Layout a, b, out;
  Layout addend;
  std::vector<cublasLtMatmulAlgo_t> candidates;  // in the library's order, at least one
  ProductChoice choice;

  const cublasLtMatmulAlgo_t& algorithm() const {
    return candidates[static_cast<std::size_t>(choice.place)];
  }
};

Products::Products() {
  SHARDWRIGHT_CUBLAS(cublasLtCreate(&handle_));
}

Products::~Products() {
  cublasLtDestroy(handle_);
}

std::string Products::library_version() {
  const std::size_t code = cublasLtGetVersion();
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

Products::Key Products::key_of(const Product& p, Bytes workspace_bytes) const {
  // The library is not asked for anything else when a product is added to what is in its place, and
  // so a gradient has the same bits whichever micro-batch it is of.
  const bool adds = p.addend.data != nullptr && p.addend.data != p.out.data;
  return {p.form,
          p.a.dtype,
          p.b.dtype,
          p.out.dtype,
          p.out.rows,
          p.out.cols,
          depth_of(p),
          p.a.stride,
          p.b.stride,
          p.out.stride,
          adds ? p.addend.stride : 0,
          alignment_of(p.a.data),
          alignment_of(p.b.data),
          alignment_of(adds ? p.addend.data : p.out.data),
          alignment_of(p.out.data),
          adds,
          p.bias != nullptr,
          workspace_bytes,
          fp8_words(p.fp8),
          multiprocessors_};
}

std::string Products::words_of(const Key& key) {
  const auto& [form, a, b, out, m, n, k, a_stride, b_stride, out_stride, addend_stride, a_aligned,
               b_aligned, addend_aligned, out_aligned, adds, biased, workspace, fp8,
               multiprocessors] = key;
  constexpr const char* kForms[] = {"NT", "NN", "TN"};
  const std::string operands = fp8.empty() ? fmt::format("{} {}", name_of(a), name_of(b)) : fp8;
  return fmt::format("{} {} {} {}x{}x{} strides {} {} {} {} alignments {} {} {} {}{}{} in {}{}",
                     kForms[static_cast<int>(form)], operands, name_of(out), m, n, k, a_stride,
                     b_stride, out_stride, addend_stride, a_aligned, b_aligned, addend_aligned,
                     out_aligned, adds ? " adds" : "", biased ? " biased" : "", workspace,
                     multiprocessors > 0 ? fmt::format(" on {}", multiprocessors) : "");
}

void Products::use(const std::vector<ProductChoice>& choices) {
  for (const ProductChoice& choice : choices) chosen_[choice.product] = choice;
}

std::vector<ProductChoice> Products::choices() const {
  std::vector<ProductChoice> all;
  for (const auto& [key, plan] : plans_) all.push_back(plan->choice);
  return all;
}

std::unique_ptr<Products::Plan> Products::plan(const Product& p, Bytes workspace_bytes) const {
  auto made = std::make_unique<Plan>();
  cublasLtMatmulDesc_t description = nullptr;
  SHARDWRIGHT_CUBLAS(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  made->description.reset(description);
  // The library's first operand is our second.
  set(description, CUBLASLT_MATMUL_DESC_TRANSA,
      p.form == ProductForm::kNT ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(description, CUBLASLT_MATMUL_DESC_TRANSB,
      p.form == ProductForm::kTN ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.bias != nullptr) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.out.dtype));
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  if (multiprocessors_ > 0) {
    set(description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{multiprocessors_});
  }
  if (p.fp8) {
    set_scale_modes(description, *p.fp8);
    set_scales(description, *p.fp8);
  }
  made->a = layout_of(p.a, p.fp8 ? type_of(p.fp8->a.format) : type_of(p.a.dtype));
  made->b = layout_of(p.b, p.fp8 ? type_of(p.fp8->b.format) : type_of(p.b.dtype));
  made->out = layout_of(p.out, type_of(p.out.dtype));
  made->addend = layout_of(p.addend.data != nullptr ? p.addend : p.out, type_of(p.out.dtype));

  cublasLtMatmulPreference_t preference = nullptr;
  SHARDWRIGHT_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
  const Preference owner(preference);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(workspace_bytes));
  // Split sums are rounded to the result's type only once.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
      alignment_of(p.addend.data != nullptr ? p.addend.data : p.out.data));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out.data));

  std::array<cublasLtMatmulHeuristicResult_t, kMostProductCandidates> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, description, made->b.get(), made->a.get(), made->addend.get(), made->out.get(),
      preference, kMostProductCandidates, found.data(), &count);
  if (status != CUBLAS_STATUS_SUCCESS || count == 0) {
    // "cublas_lt.rowwise_hole" of the vendors' rules.
    const bool scales_rows = p.fp8 && p.fp8->a.scaling == kernels::Fp8Scaling::kRows;
    throw Error(
        fmt::format("cuBLASLt has no algorithm for a product of {} x {} x {} in {}{}: {}{}",
                    p.out.rows, p.out.cols, depth_of(p),
                    p.fp8 ? fp8_words(p.fp8) : std::string(name_of(p.a.dtype)),
                    p.bias != nullptr ? " with a bias" : "", cublasLtGetStatusName(status),
                    scales_rows ? "; with fp8_recipe tensorwise or more tokens it has one" : ""),
        ExitCode::kFailed);
  }
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& one = found[static_cast<std::size_t>(i)];
    if (i == 0 || one.state == CUBLAS_STATUS_SUCCESS) made->candidates.push_back(one.algo);
  }
  made->choice.product = words_of(key_of(p, workspace_bytes));
  const auto known = chosen_.find(made->choice.product);
  if (known != chosen_.end() && known->second.place < std::ssize(made->candidates)) {
    made->choice = known->second;
  }
  return made;
}

cublasStatus_t Products::launch(const Product& p, const Plan& planned,
                                const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                                Bytes workspace_bytes, cudaStream_t stream) const {
  const bool adds = p.addend.data != nullptr;
  const float one = 1, beta = adds ? 1 : 0;
  return cublasLtMatmul(handle_, planned.description.get(), &one, p.b.data, planned.b.get(),
                        p.a.data, planned.a.get(), &beta, adds ? p.addend.data : p.out.data,
                        planned.addend.get(), p.out.data, planned.out.get(), &algorithm, workspace,
                        static_cast<std::size_t>(workspace_bytes), stream);
}

void Products::time_candidates(const Product& p, Plan& planned, void* workspace,
                               Bytes workspace_bytes, cudaStream_t stream) const {
  const EventHandle begin = make_event_handle(EventUse::kTime);
  const EventHandle end = make_event_handle(EventUse::kTime);
  std::vector<double> best(planned.candidates.size(), std::numeric_limits<double>::infinity());
  // The first round loads code.
  for (int round = 0; round <= kTimedRounds; ++round) {
    for (std::size_t i = 0; i < best.size(); ++i) {
      SHARDWRIGHT_CUDA(cudaEventRecord(begin.get(), stream));
      bool launched = true;
      for (int run = 0; run < kRunsOfARound && launched; ++run) {
        launched = launch(p, planned, planned.candidates[i], workspace, workspace_bytes, stream) ==
                   CUBLAS_STATUS_SUCCESS;
      }
      SHARDWRIGHT_CUDA(cudaEventRecord(end.get(), stream));
      SHARDWRIGHT_CUDA(cudaEventSynchronize(end.get()));
      float milliseconds = 0;
      SHARDWRIGHT_CUDA(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
      if (round > 0 && launched) best[i] = std::min(best[i], 1e-3 * milliseconds / kRunsOfARound);
    }
  }
  const auto fastest = std::min_element(best.begin(), best.end());
  if (*fastest < kWorthwhile * best.front()) {
    planned.choice.place = static_cast<std::int32_t>(fastest - best.begin());
  }
  planned.choice.first_s = std::isfinite(best.front()) ? best.front() : 0;
  planned.choice.seconds = best[static_cast<std::size_t>(planned.choice.place)];
}

void Products::run(const Product& p, void* workspace, Bytes workspace_bytes, cudaStream_t stream) {
  check_shapes(p);
  std::unique_ptr<Plan>& planned = plans_[key_of(p, workspace_bytes)];
  const bool fresh = !planned;
  if (fresh) planned = plan(p, workspace_bytes);
  if (p.bias != nullptr) {
    set(planned->description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  if (p.fp8) set_scales(planned->description.get(), *p.fp8);
  if (fresh && times_ && !chosen_.contains(planned->choice.product)) {
    time_candidates(p, *planned, workspace, workspace_bytes, stream);
  }
  SHARDWRIGHT_CUBLAS(launch(p, *planned, planned->algorithm(), workspace, workspace_bytes, stream));
}

namespace {

/// The products of this rank's step: timed where `known` has them not.
ProductChoices time_products(Executor& executor, CudaDevice& device, const Batch& batch,
                             const ProductChoices& known) {
  device.products().use(known.choices);
  // Products of zeros take little power, so that the clock is not that of a step; the rehearsal
  // forgets these weights again.
  constexpr std::uint64_t kAnySeed = 1;
  executor.initialize(kAnySeed);
  device.products().time_choices(true);
  executor.rehearse_alone(batch);
  device.products().time_choices(false);
  return {known.release, known.gpu, device.products().choices()};
}

}  // namespace

ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, std::span<const ProductChoices> known) {
  const auto from_rank = [&](std::int64_t rank, const auto& choose) {
    std::string text;
    if (executor.world().rank() == rank) text = to_json(choose());
    const auto texts = exchange_texts(executor.world(), std::move(text));
    return product_choices_from(texts[static_cast<std::size_t>(rank)],
                                fmt::format("rank {}'s choices", rank));
  };
  ProductChoices agreed{Products::library_version(), gpu, {}};
  const ProductChoices usable = from_rank(0, [&] {
    ProductChoices all = agreed;
    for (const ProductChoices& one : known) {
      if (one.same_place(all)) all.add(one);
    }
    return all;
  });
  // Ranks of a stage multiply the same shapes.
  for (const std::int64_t rank : executor.first_ranks_of_stages()) {
    agreed.add(from_rank(rank, [&] {
      ProductChoices met = agreed;
      met.add(usable);
      return time_products(executor, device, batch, met);
    }));
  }
  device.products().use(agreed.choices);
  return agreed;
}

}  // namespace shardwright::exec::cuda
