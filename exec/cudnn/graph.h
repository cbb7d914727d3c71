// SPDX-License-Identifier: Apache-2.0
// Builds an operation graph of cuDNN out of tensors and the five kinds of operation that attention
// needs, and turns it into a plan that runs.
//
// A graph is made for a device description: that of the current GPU, or a JSON text. With the text,
// everything up to the loading of the compiled kernels works on a machine without a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exec/cudnn/descriptor.h"
#include "sim/core/units.h"

namespace shardwright::exec::cudnn {

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

}  // namespace shardwright::exec::cudnn
