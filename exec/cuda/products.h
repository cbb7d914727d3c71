// SPDX-License-Identifier: Apache-2.0
// Products of row-major matrices through cuBLASLt.
//
// bf16, fp32 and fp8 operands, fp32 sums (never TF32), results rounded once; fp8 with the scales of
// kernels/fp8.h, and without the library's faster, coarser sums. What the library needs to
// know about a shape is made once, when the shape is first asked for: descriptions, and an
// algorithm: the first that the library's heuristics offer, or the one that a choice names. Choices
// are made by timing (time_choices) and handed on (exec/cuda/products.h), so a shape's
// algorithm, and its result to the bit, is the same on all ranks wherever operands lie; sums that
// are split over blocks are added in fp32 in a fixed order. Nothing is allocated on the device:
// algorithms use the workspace that is handed in.
//
// cuBLASLt counts in columns: row-major C[M, N] = A B is its column-major C^T[N, M] = B^T A^T.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "exec/array.h"
#include "exec/batch.h"
#include "kernels/fp8.h"
#include "sim/core/product_choices.h"

namespace shardwright::exec::cuda {

enum class ProductForm : std::uint8_t {
  kNT,  // out[M, N] = a[M, K] b[N, K]^T
  kNN,  // out[M, N] = a[M, K] b[K, N]
  kTN   // out[M, N] = a[K, M]^T b[K, N]
};

/// What the codes of a product in fp8 are.
struct Fp8Operands {
  kernels::Fp8Matrix a, b;
};

struct Product {
  ProductForm form = ProductForm::kNT;
  Matrix a, b;
  Matrix addend;               // of out's type and shape, may be out; without data nothing is added
  const void* bias = nullptr;  // N numbers of out's type, or null
  Matrix out;
  /// In fp8, a and b are codes, a byte each, whatever type they are called.
  std::optional<Fp8Operands> fp8 = {};
};

/// [m, k] times [n, k]^T. Codes that are turned stand as the form says.
Product fp8_product_of(const kernels::Fp8Matrix& a, const kernels::Fp8Matrix& b, Matrix out);

class Products {
 public:
  /// For the calling thread's current GPU, the only one whose matrices it may be given.
  Products();
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  /// Enqueues the product. Throws Error, which names the shape, when the library has no algorithm
  /// for it.
  void run(const Product& product, void* workspace, Bytes workspace_bytes, cudaStream_t stream);

  /// While on, a product that is met for the first time, and that no choice names, runs several
  /// times by each algorithm, and the fastest is kept. What such products add to becomes useless,
  /// and the host waits: not within a step.
  void time_choices(bool on) { times_ = on; }
  /// Products that are met from now on are planned for so many multiprocessors; 0: all of them.
  void use_multiprocessors(int count) { multiprocessors_ = count; }
  /// For products that are met from now on.
  void use(const std::vector<ProductChoice>& choices);
  /// Of all products so far.
  std::vector<ProductChoice> choices() const;

  std::size_t planned_shapes() const { return plans_.size(); }
  /// "13.1.0".
  static std::string library_version();

 private:
  struct Plan;
  // form, types, M, N, K, strides, alignments, whether it adds and is biased, workspace, what of
  // fp8 the operands are, and for how many multiprocessors
  using Key =
      std::tuple<ProductForm, DType, DType, DType, std::int64_t, std::int64_t, std::int64_t,
                 std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::uint32_t,
                 std::uint32_t, std::uint32_t, std::uint32_t, bool, bool, Bytes, std::string, int>;
  Key key_of(const Product& product, Bytes workspace_bytes) const;
  static std::string words_of(const Key& key);
  std::unique_ptr<Plan> plan(const Product& product, Bytes workspace_bytes) const;
  cublasStatus_t launch(const Product& product, const Plan& plan,
                        const cublasLtMatmulAlgo_t& algorithm, void* workspace,
                        Bytes workspace_bytes, cudaStream_t stream) const;
  void time_candidates(const Product& product, Plan& plan, void* workspace, Bytes workspace_bytes,
                       cudaStream_t stream) const;

  cublasLtHandle_t handle_ = nullptr;
  bool times_ = false;
  int multiprocessors_ = 0;
  std::map<std::string, ProductChoice> chosen_;  // by product
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace shardwright::exec::cuda

// The fastest of cuBLASLt's algorithms for every product of a run: timed once, by rank 0, before
// the first step, and the same on all ranks.
//
// Rank 0 goes through a step that counts for nothing (Executor::rehearse_alone) and times what it
// meets, on the operands and the workspace of the run; the others wait, also those on the same GPU,
// and are told. In a pipeline the first rank of every stage does so, one after the other, because
// stages multiply other shapes. What was chosen is kept (sim/core/product_choices.h), and with it a
// run that goes on computes the bits of the run before.

namespace shardwright::exec {

class CudaDevice;
class Executor;

namespace cuda {

/// Called by all ranks before anything else is run. `known` by rank 0, from earlier runs and
/// measurements: of these, what is of this library and GPU, the first that names a product; what
/// none names is timed. Returns what holds on all ranks.
ProductChoices agree_on_products(Executor& executor, CudaDevice& device, const Batch& batch,
                                 const std::string& gpu, std::span<const ProductChoices> known);

}  // namespace cuda
}  // namespace shardwright::exec
