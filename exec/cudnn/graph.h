// SPDX-License-Identifier: Apache-2.0
// Builds an operation graph of cuDNN out of tensors and the five kinds of operation that attention
// needs, and turns it into a plan that runs.
//
// A graph is made for a device description: that of the current GPU, or a JSON text. With the text,
// everything up to the loading of the compiled kernels works on a machine without a GPU.
#pragma once

#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "sim/core/units.h"

namespace shardwright::exec::cudnn {

// Whether the cuDNN that the loader found can serve attention at all.
//
// The engines are compiled at run time by NVRTC, which cuDNN loads itself: without it, it offers no
// engine and does not say why. NVRTC is loaded here first, by this program's own search path, so
// that cuDNN finds it where a package carries it. Which releases are refused and why is in
// exec/libraries/rules.json.

/// "9.19.0" of 91900.
std::string version_text(std::size_t version);
/// A release that a rule of cuDNN names, as cudnnGetVersion() has it.
std::size_t ruled_version(const char* rule, const char* key = "code");
/// Why a cuDNN of that version is not used, as the end of a sentence that begins with "cudnn";
/// empty when it is.
std::string version_refusal(std::size_t version);
/// Why one of that version does not take sequences of that many tokens.
std::string length_refusal(std::size_t version, std::int64_t seq);
/// Why one is not used where the compiler of that name, "libnvrtc.so.13", or its builtins cannot be
/// loaded.
std::string compiler_refusal(const std::string& name);
/// The same of the part of the loaded cuDNN that has the engines.
std::string engine_refusal(const std::string& part);
/// All of them, of the library and the compiler that it wants; asked once.
const std::string& library_refusal();
/// "cuDNN 9.19.0"
std::string library_name();

// A descriptor of cuDNN's C graph API that destroys itself, and the check around every call.
//
// The C API is used instead of NVIDIA's C++ front end: it comes with the library, needs no further
// package and compiles in a moment. Everything is a descriptor: it is created with a type, given
// attributes and finalized.

/// Throws Error with the call, its place and the library's own words when `status` is a failure.
void check(cudnnStatus_t status, const char* call, const char* file, int line);
#define SHARDWRIGHT_CUDNN(call) ::shardwright::exec::cudnn::check((call), #call, __FILE__, __LINE__)

class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }

  cudnnBackendDescriptor_t raw() const { return raw_; }

  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::span<const T> values) {
    set_raw(name, type, static_cast<std::int64_t>(values.size()), values.data());
    return *this;
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<T>& values) {
    return set(name, type, std::span<const T>(values));
  }
  template <class T>
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T value) {
    return set(name, type, std::span<const T>(&value, 1));
  }
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& other);
  Descriptor& finalize();

  std::int64_t get_int64(cudnnBackendAttributeName_t name) const;
  /// Descriptors of `type` that the library fills in, at most `most` of them.
  std::vector<Descriptor> get_descriptors(cudnnBackendAttributeName_t name,
                                          cudnnBackendDescriptorType_t type,
                                          std::int64_t most) const;

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
               std::int64_t count, const void* values);

  cudnnBackendDescriptor_t raw_ = nullptr;
};

using Dims = std::array<std::int64_t, 4>;

/// Strides of contiguous dims.
Dims contiguous(const Dims& dims);

/// Identifies a tensor that lies in memory when the plan runs.
using Uid = std::int64_t;

class Graph {
 public:
  /// A tensor of the graph: its place in the list of descriptors, and its dims.
  struct Tensor {
    std::size_t index = 0;
    Dims dims{};
  };

  /// In device memory, bound to `uid` when the plan runs. With `begins`, a list of 64-bit integers
  /// one longer than dims[0], entry i begins so many elements behind the first.
  Tensor real(Uid uid, cudnnDataType_t dtype, const Dims& dims, const Dims& strides,
              std::optional<Tensor> begins = {});
  /// One fp32 number in host memory.
  Tensor scalar(Uid uid);
  /// Between two operations; never in memory unless the engine says so.
  Tensor between(cudnnDataType_t dtype, const Dims& dims, std::optional<Dims> strides = {},
                 std::optional<Tensor> begins = {});

  /// How far a product c[M, N] = a[M, K] b[K, N] goes, for each entry of the batch: lists of 32-bit
  /// integers. What lies beyond in c counts as 0 for the operations that follow, where asked.
  struct Extents {
    std::optional<Tensor> m, n, k;
    bool zero_beyond = false;
  };
  void matmul(Tensor a, Tensor b, Tensor c) { matmul(a, b, c, Extents()); }
  void matmul(Tensor a, Tensor b, Tensor c, const Extents& extents);
  void reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y);
  void reshape(Tensor x, Tensor y);
  /// y = the index of each element along `axis`.
  void index(std::int64_t axis, Tensor x, Tensor y);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y);
  void pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y);
  /// y = mask ? x : b
  void select(Tensor x, Tensor b, Tensor mask, Tensor y);

  std::size_t operations() const { return operations_.size(); }
  /// Checks the whole graph. Nothing may be added afterwards.
  const Descriptor& finish();

 private:
  Tensor add(cudnnDataType_t dtype, const Dims& dims, const Dims& strides, Uid uid, bool is_virtual,
             bool by_value, std::optional<Tensor> begins = {});
  Descriptor& operation(cudnnBackendDescriptorType_t type);
  Descriptor pointwise_mode(cudnnPointwiseMode_t mode, cudnnDataType_t precision);
  const Descriptor& at(Tensor tensor) const { return tensors_[tensor.index]; }

  std::vector<Descriptor> tensors_;
  std::vector<Descriptor> details_;  // what operations refer to
  std::vector<Descriptor> operations_;
  std::optional<Descriptor> graph_;
};

/// The device of a handle.
Descriptor device_of(cudnnHandle_t handle);
/// A device in words; tests/data/cudnn/h200.json shows the keys.
Descriptor device_of(const std::string& json);

/// The engines that can run the graph on the device, the best first by cuDNN's own judgement. Where
/// the order of sums is fixed, before them what NVIDIA's own front end takes for that on
/// data-centre Blackwell, which the judgement leaves out: 8 times less workspace than the engine
/// that it names.
std::vector<Descriptor> engines(const Descriptor& graph, const Descriptor& device,
                                bool fixed_order = false);
/// Which engine a configuration is of, by cuDNN's count.
std::int64_t engine_number(const Descriptor& config);

/// A compiled graph.
class Plan {
 public:
  /// The first engine that compiles; throws Error with the last reason when none does.
  Plan(Graph graph, const Descriptor& device, bool fixed_order = false);

  Bytes workspace_bytes() const { return workspace_bytes_; }
  void execute(cudnnHandle_t handle, const std::vector<std::pair<Uid, const void*>>& arrays,
               void* workspace) const;

 private:
  Graph graph_;
  std::optional<Descriptor> plan_;
  Bytes workspace_bytes_ = 0;
};

// Causal grouped-query attention as operation graphs, in the shape that cuDNN's fused engines
// recognise. The order of operations is part of that shape: the mask follows the scale in forward
// and the subtraction of the statistics in backward.

/// The arrays of both graphs. From kScale on they are numbers in host memory.
enum AttentionUid : Uid {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kStatistics,
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kDelta,       // fp32 [B, H, T]: the sums over D of out times its gradient
  kQueryTotal,  // fp32 [B, H, T, D]: where blocks of keys add their parts of dQ
  // Of packed documents, where they begin (kernels/cuda/attention.h) and how long they are.
  kQueryBegins,
  kKeyBegins,
  kOutBegins,
  kRowBegins,
  kLengths,
  // Of packed documents and grouped heads, bf16 [tokens, group, ...]: before the sum over a group.
  kEveryKeyGradient,
  kEveryValueGradient,
  kSlopes,  // fp32, one for each head, 16 bytes apart, so that every slice begins aligned
  kScale,
  kMasked,  // the score of what a query does not see
  kBeyond,  // and of what lies beyond a document
  kOne,
  kCap,  // of scores that go to the softmax as cap * tanh(score / cap)
  kInverseCap
};

/// Elements from token to token.
struct RowStrides {
  std::int64_t query = 0, key = 0;  // of query heads, of key and value heads, and their gradients
  std::int64_t out = 0;             // and its gradient
  std::int64_t rows = 0;            // of documents' statistics and delta, which lie [tokens, H]
};
/// Of packed heads.
inline RowStrides row_strides(const kernels::cuda::AttentionProblem& problem) {
  return {problem.packed_stride, problem.packed_stride, problem.out_stride, problem.shape.heads};
}

/// 14 operations: the scores, their softmax, the output and the statistics; three more with a cap,
/// five with slopes, and six with documents, which are the entries of the batch then.
Graph attention_forward_graph(const kernels::cuda::AttentionProblem& problem);
Graph attention_forward_graph(const kernels::cuda::AttentionProblem& problem,
                              const RowStrides& strides);

inline constexpr std::int64_t kSlopeStride = 4;

/// How dQ comes together from the blocks of keys.
enum class QueryGradient {
  kOrdered,     // the same bits every time; the engine keeps one matrix of T x T a head in bf16
  kAccumulated  // added in fp32 by whoever comes first: memory linear in T, other bits every time
};

/// 23 operations for kOrdered, 24 for kAccumulated; two fewer when every query head has a key head
/// of its own, and six more with a cap, five with slopes, six with documents.
Graph attention_backward_graph(const kernels::cuda::AttentionProblem& problem, QueryGradient form);
Graph attention_backward_graph(const kernels::cuda::AttentionProblem& problem, QueryGradient form,
                               const RowStrides& strides);

}  // namespace shardwright::exec::cudnn
