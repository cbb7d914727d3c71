// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/graph.h"

#include <fmt/core.h>

#include <algorithm>

#include "exec/cudnn/library.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {
namespace {

constexpr Dims kScalarDims = {1, 1, 1, 1};
// Virtual tensors need identifiers, too; those of real ones are small.
constexpr Uid kFirstVirtual = 1000;
// As many as cuDNN proposes for any graph of ours.
constexpr std::int64_t kMostEngines = 16;

}  // namespace

Dims contiguous(const Dims& dims) {
  return {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
}

Graph::Tensor Graph::add(cudnnDataType_t dtype, const Dims& dims, const Dims& strides, Uid uid,
                         bool is_virtual, bool by_value, std::optional<Tensor> begins) {
  constexpr std::int64_t kAlignmentBytes = 16;
  Descriptor made(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  if (begins) made.set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, at(*begins));
  made.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, dtype)
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::span<const std::int64_t>(dims))
      .set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::span<const std::int64_t>(strides))
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, uid)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignmentBytes)
      .set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual)
      .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, by_value)
      .finalize();
  tensors_.push_back(std::move(made));
  return {tensors_.size() - 1, dims};
}

Graph::Tensor Graph::real(Uid uid, cudnnDataType_t dtype, const Dims& dims, const Dims& strides,
                          std::optional<Tensor> begins) {
  return add(dtype, dims, strides, uid, false, false, begins);
}

Graph::Tensor Graph::scalar(Uid uid) {
  return add(CUDNN_DATA_FLOAT, kScalarDims, kScalarDims, uid, false, true);
}

Graph::Tensor Graph::between(cudnnDataType_t dtype, const Dims& dims, std::optional<Dims> strides,
                             std::optional<Tensor> begins) {
  return add(dtype, dims, strides.value_or(contiguous(dims)),
             kFirstVirtual + static_cast<Uid>(tensors_.size()), true, false, begins);
}

Descriptor& Graph::operation(cudnnBackendDescriptorType_t type) {
  return operations_.emplace_back(type);
}

Descriptor Graph::pointwise_mode(cudnnPointwiseMode_t mode, cudnnDataType_t precision) {
  Descriptor result(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  result.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
      .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, precision);
  return result;
}

void Graph::matmul(Tensor a, Tensor b, Tensor c, const Extents& extents) {
  constexpr double kZero = 0;
  Descriptor& mode = details_.emplace_back(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  mode.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (extents.zero_beyond) mode.set(CUDNN_ATTR_MATMUL_PADDING_VALUE, CUDNN_TYPE_DOUBLE, kZero);
  mode.finalize();
  Descriptor& product = operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  product.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, at(a))
      .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, at(b))
      .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, at(c))
      .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, mode);
  const auto bound = [&](cudnnBackendAttributeName_t name, std::optional<Tensor> to) {
    if (to) product.set(name, at(*to));
  };
  bound(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, extents.m);
  bound(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, extents.n);
  bound(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, extents.k);
  product.finalize();
}

void Graph::reduce(cudnnReduceTensorOp_t op, Tensor x, Tensor y) {
  Descriptor& mode = details_.emplace_back(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  mode.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, op)
      .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT)
      .finalize();
  operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, at(y))
      .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, mode)
      .finalize();
}

void Graph::reshape(Tensor x, Tensor y) {
  operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, at(y))
      .finalize();
}

void Graph::index(std::int64_t axis, Tensor x, Tensor y) {
  Descriptor& mode =
      details_.emplace_back(pointwise_mode(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32));
  mode.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis).finalize();
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, mode)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y))
      .finalize();
}

void Graph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor y) {
  Descriptor& detail = details_.emplace_back(pointwise_mode(mode, CUDNN_DATA_FLOAT));
  detail.finalize();
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y))
      .finalize();
}

void Graph::pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b, Tensor y) {
  const bool is_logical = mode == CUDNN_POINTWISE_LOGICAL_AND ||
                          (mode >= CUDNN_POINTWISE_CMP_EQ && mode <= CUDNN_POINTWISE_CMP_LE);
  Descriptor& detail = details_.emplace_back(
      pointwise_mode(mode, is_logical ? CUDNN_DATA_BOOLEAN : CUDNN_DATA_FLOAT));
  detail.finalize();
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y))
      .finalize();
}

void Graph::select(Tensor x, Tensor b, Tensor mask, Tensor y) {
  Descriptor& detail =
      details_.emplace_back(pointwise_mode(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT));
  detail.finalize();
  operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, detail)
      .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, at(x))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, at(b))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, at(mask))
      .set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, at(y))
      .finalize();
}

const Descriptor& Graph::finish() {
  if (!graph_) {
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const Descriptor& op : operations_) raw.push_back(op.raw());
    graph_.emplace(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    graph_->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw).finalize();
  }
  return *graph_;
}

Descriptor device_of(cudnnHandle_t handle) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, handle).finalize();
  return device;
}

Descriptor device_of(const std::string& json) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  std::vector<char> text(json.begin(), json.end());
  text.push_back('\0');
  device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, text).finalize();
  return device;
}

namespace {

/// cuDNN's engine of tcgen05 products, in the configuration that adds dQ's parts one after the
/// other (cudnn-frontend, scaled_dot_product_flash_attention.h, deterministic on sm_100). None
/// where this GPU, release or graph has it not.
std::optional<Descriptor> blackwell_ordered_engine(const Descriptor& graph,
                                                   const Descriptor& device) {
  constexpr const char* kRule = "cudnn.ordered_on_blackwell";
  if (cudnnGetVersion() < ruled_version(kRule)) return {};
  try {
    Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph)
        .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64,
             libraries::rule_number(kRule, "engine"))
        .set(CUDNN_ATTR_ENGINE_DEVICEPROP, device)
        .finalize();
    std::vector<Descriptor> choices;
    std::vector<cudnnBackendDescriptor_t> raw;
    for (const auto& [knob, value] :
         {std::pair{CUDNN_KNOB_TYPE_KERNEL_CFG, libraries::rule_number(kRule, "kernel")},
          std::pair{CUDNN_KNOB_TYPE_STAGES, libraries::rule_number(kRule, "stages")}}) {
      raw.push_back(choices.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)
                        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, knob)
                        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, value)
                        .finalize()
                        .raw());
    }
    Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine)
        .set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, raw)
        .finalize();
    return config;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

std::int64_t engine_number(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  std::int64_t count = 0;
  SHARDWRIGHT_CUDNN(cudnnBackendGetAttribute(config.raw(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw));
  return engine.get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
}

std::vector<Descriptor> engines(const Descriptor& graph, const Descriptor& device,
                                bool fixed_order) {
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, CUDNN_HEUR_MODE_A)
      .set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device)
      .finalize();
  std::vector<Descriptor> found = heuristics.get_descriptors(
      CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kMostEngines);
  if (fixed_order) {
    if (auto ordered = blackwell_ordered_engine(graph, device)) {
      found.insert(found.begin(), std::move(*ordered));
    }
  }
  return found;
}

Plan::Plan(Graph graph, const Descriptor& device, bool fixed_order) : graph_(std::move(graph)) {
  std::string reason = "cuDNN has no engine for it";
  for (const Descriptor& config : engines(graph_.finish(), device, fixed_order)) {
    try {
      Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)
          .set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device)
          .finalize();
      workspace_bytes_ = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
      plan_ = std::move(plan);
      return;
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  throw Error(reason, ExitCode::kFailed);
}

void Plan::execute(cudnnHandle_t handle, const std::vector<std::pair<Uid, const void*>>& arrays,
                   void* workspace) const {
  std::vector<Uid> uids;
  std::vector<const void*> pointers;
  for (const auto& [uid, pointer] : arrays) {
    uids.push_back(uid);
    pointers.push_back(pointer);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, uids)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace)
      .finalize();
  SHARDWRIGHT_CUDNN(cudnnBackendExecute(handle, plan_->raw(), pack.raw()));
}

}  // namespace shardwright::exec::cudnn
