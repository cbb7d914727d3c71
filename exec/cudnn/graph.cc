// SPDX-License-Identifier: Apache-2.0
#include "exec/cudnn/graph.h"

#include <cudnn.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <array>
#include <optional>
#include <string>

#include "exec/libraries/loaded_library.h"
#include "exec/libraries/rules.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::size_t ruled_version(const char* rule, const char* key) {
  return static_cast<std::size_t>(libraries::rule_number(rule, key));
}

std::string version_refusal(std::size_t version) {
  const std::size_t oldest = ruled_version("cudnn.oldest");
  if (version >= oldest) return {};
  return fmt::format(
      "is version {}, expected {} or newer: older ones add to sums of dQ that nobody zeroed",
      version_text(version), version_text(oldest));
}

std::string length_refusal(std::size_t version, std::int64_t seq) {
  const std::size_t last = ruled_version("cudnn.whole_tiles", "last_code");
  const std::int64_t tile = libraries::rule_number("cudnn.whole_tiles", "tile");
  if (version > last || seq % tile == 0) return {};
  return fmt::format(
      "of version {} takes sequences of multiples of {} tokens, not {}: newer than {} takes any",
      version_text(version), tile, seq, version_text(last));
}

std::string compiler_refusal(const std::string& name) {
  // Never unloaded; what cuDNN loads by that name afterwards is the same.
  void* compiler = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (compiler == nullptr) {
    const std::string why = dlerror();
    compiler = dlopen((SHARDWRIGHT_NVRTC_FOLDER "/" + name).c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (compiler == nullptr) {
      return fmt::format(
          "has no engines without NVRTC ({}), expected it in a folder of the system "
          "or of LD_LIBRARY_PATH",
          why);
    }
  }
  // NVRTC looks for its builtins by name, too.
  const auto get_version = reinterpret_cast<int (*)(int*, int*)>(dlsym(compiler, "nvrtcVersion"));
  int major = 0, minor = 0;
  if (get_version == nullptr || get_version(&major, &minor) != 0) return {};
  const std::string why =
      libraries::why_without(compiler, fmt::format("libnvrtc-builtins.so.{}.{}", major, minor));
  if (why.empty()) return {};
  return fmt::format("has no engines without NVRTC's builtins ({}), expected them beside NVRTC",
                     why);
}

std::string engine_refusal(const std::string& part) {
  void* const library = dlopen(SHARDWRIGHT_CUDNN_FILE, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  const std::string why = libraries::why_without(library, part);
  return why.empty() ? why : fmt::format("has no engines without a part of it ({})", why);
}

const std::string& library_refusal() {
  static const std::string refusal = [] {
    try {
      std::string why = version_refusal(cudnnGetVersion());
      if (why.empty()) why = engine_refusal("libcudnn_engines_runtime_compiled.so.9");
      if (!why.empty()) return why;
      return compiler_refusal(fmt::format("libnvrtc.so.{}", cudnnGetCudartVersion() / 1000));
    } catch (const Error& error) {
      return std::string("is not here: ") + error.what();
    }
  }();
  return refusal;
}

std::string library_name() {
  return "cuDNN " + version_text(cudnnGetVersion());
}

void check(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  throw Error(fmt::format("{} failed at {}:{} with {}: {}", call, file, line,
                          cudnnGetErrorString(status), text.data()),
              ExitCode::kFailed);
}

Descriptor::Descriptor(cudnnBackendDescriptorType_t type) {
  SHARDWRIGHT_CUDNN(cudnnBackendCreateDescriptor(type, &raw_));
}

Descriptor::~Descriptor() {
  if (raw_ != nullptr) cudnnBackendDestroyDescriptor(raw_);
}

void Descriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::int64_t count, const void* values) {
  SHARDWRIGHT_CUDNN(cudnnBackendSetAttribute(raw_, name, type, count, values));
}

Descriptor& Descriptor::set(cudnnBackendAttributeName_t name, const Descriptor& other) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, other.raw());
}

Descriptor& Descriptor::finalize() {
  SHARDWRIGHT_CUDNN(cudnnBackendFinalize(raw_));
  return *this;
}

std::int64_t Descriptor::get_int64(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  SHARDWRIGHT_CUDNN(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_INT64, 1, &count, &value));
  return value;
}

std::vector<Descriptor> Descriptor::get_descriptors(cudnnBackendAttributeName_t name,
                                                    cudnnBackendDescriptorType_t type,
                                                    std::int64_t most) const {
  std::vector<Descriptor> result;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < most; ++i) raw.push_back(result.emplace_back(type).raw());
  std::int64_t count = 0;
  SHARDWRIGHT_CUDNN(cudnnBackendGetAttribute(raw_, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, most,
                                             &count, raw.data()));
  while (std::ssize(result) > count) result.pop_back();
  return result;
}

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

namespace {

using kernels::cuda::AttentionProblem;
using Tensor = Graph::Tensor;

constexpr cudnnDataType_t kBf16 = CUDNN_DATA_BFLOAT16;
constexpr cudnnDataType_t kFp32 = CUDNN_DATA_FLOAT;

/// What both graphs have in common: dims, the inputs and the masked scores.
struct Parts {
  const AttentionProblem& problem;
  RowStrides strides;
  Graph graph{};
  std::int64_t b = problem.documents ? problem.most_documents : problem.shape.batch;
  std::int64_t t = problem.shape.seq, d = problem.shape.head_dim;
  std::int64_t h = problem.shape.heads, hkv = problem.shape.kv_heads;
  Dims scores = {b, h, t, t};
  Dims rows = {b, h, t, 1};
  // Of packed documents: where each begins, and how long it is.
  std::optional<Tensor> query_begins{}, key_begins{}, out_begins{}, row_begins{}, lengths{};

  Parts(const AttentionProblem& one, const RowStrides& its) : problem(one), strides(its) {
    if (!problem.documents) return;
    const auto list = [&](Uid uid, cudnnDataType_t dtype, std::int64_t length) {
      return graph.real(uid, dtype, {length, 1, 1, 1}, {1, 1, 1, 1});
    };
    query_begins = list(kQueryBegins, CUDNN_DATA_INT64, b + 1);
    key_begins = list(kKeyBegins, CUDNN_DATA_INT64, b + 1);
    out_begins = list(kOutBegins, CUDNN_DATA_INT64, b + 1);
    row_begins = list(kRowBegins, CUDNN_DATA_INT64, b + 1);
    lengths = list(kLengths, CUDNN_DATA_INT32, b);
  }

  Dims lying(std::int64_t stride) const { return {t * stride, d, stride, 1}; }
  /// Heads inside [tokens, ...] rows: [B, heads, T, D] by strides, no copy.
  Tensor queries(Uid uid) {
    return graph.real(uid, kBf16, {b, h, t, d}, lying(strides.query), query_begins);
  }
  Tensor keys(Uid uid) {
    return graph.real(uid, kBf16, {b, hkv, t, d}, lying(strides.key), key_begins);
  }
  Tensor outputs(Uid uid) {
    return graph.real(uid, kBf16, {b, h, t, d}, lying(strides.out), out_begins);
  }
  /// Keys with T and D exchanged, as products with the transpose want them.
  Tensor transposed_keys(Uid uid) {
    return graph.real(uid, kBf16, {b, hkv, d, t}, {t * strides.key, d, 1, strides.key}, key_begins);
  }
  /// A number for each row of scores: [B, H, T], of documents [tokens, H].
  Tensor row_numbers(Uid uid) {
    if (!problem.documents) return graph.real(uid, kFp32, rows, contiguous(rows));
    return graph.real(uid, kFp32, rows, {t * strides.rows, 1, strides.rows, 1}, row_begins);
  }
  Tensor score_like(cudnnDataType_t dtype = kFp32) { return graph.between(dtype, scores); }

  Tensor scaled(Tensor x, Tensor scale) {
    const Tensor y = score_like();
    graph.pointwise(CUDNN_POINTWISE_MUL, x, scale, y);
    return y;
  }
  /// Scores of a by b; what lies beyond a document counts as 0 where asked.
  Tensor product(Tensor a, Tensor b_, bool zero_beyond = false) {
    const Tensor y = score_like();
    graph.matmul(a, b_, y, {.m = lengths, .n = lengths, .k = {}, .zero_beyond = zero_beyond});
    return y;
  }
  /// y = scores times rows.
  void gather(Tensor scores_, Tensor rows_, Tensor y) {
    graph.matmul(scores_, rows_, y, {.m = lengths, .n = {}, .k = lengths});
  }
  Tensor pointwise(cudnnPointwiseMode_t mode, Tensor x, Tensor b_) {
    const Tensor y = score_like();
    graph.pointwise(mode, x, b_, y);
    return y;
  }
  Tensor exp(Tensor x) {
    const Tensor y = score_like();
    graph.pointwise(CUDNN_POINTWISE_EXP, x, y);
    return y;
  }
  /// tanh(x / cap).
  Tensor bent(Tensor x) {
    const Tensor share = scaled(x, graph.scalar(kInverseCap)), y = score_like();
    graph.pointwise(CUDNN_POINTWISE_TANH_FWD, share, y);
    return y;
  }
  bool is_capped() const { return problem.shape.softcap != 0; }
  struct Positions {
    Tensor query, key;
  };
  /// Of every score.
  Positions positions(Tensor x) {
    const Positions at{score_like(CUDNN_DATA_INT32), score_like(CUDNN_DATA_INT32)};
    graph.index(2, x, at.query);
    graph.index(3, x, at.key);
    return at;
  }
  /// x + slope * (key - query).
  Tensor sloped(Tensor x) {
    const auto [row, col] = positions(x);
    const Tensor ahead = score_like(CUDNN_DATA_INT32);
    graph.pointwise(CUDNN_POINTWISE_SUB, col, row, ahead);
    const Tensor slopes =
        graph.real(kSlopes, kFp32, {1, h, 1, 1}, {kSlopeStride * h, kSlopeStride, 1, 1});
    return pointwise(CUDNN_POINTWISE_ADD, x, pointwise(CUDNN_POINTWISE_MUL, ahead, slopes));
  }
  /// Scores beyond a document's length become kMasked.
  Tensor within_documents(Tensor x) {
    if (!problem.documents) return x;
    const auto [row, col] = positions(x);
    const Tensor row_is = score_like(CUDNN_DATA_BOOLEAN), col_is = score_like(CUDNN_DATA_BOOLEAN),
                 both = score_like(CUDNN_DATA_BOOLEAN), y = score_like();
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, row, *lengths, row_is);
    graph.pointwise(CUDNN_POINTWISE_CMP_LT, col, *lengths, col_is);
    graph.pointwise(CUDNN_POINTWISE_LOGICAL_AND, row_is, col_is, both);
    graph.select(x, graph.scalar(kBeyond), both, y);
    return y;
  }
  /// Scores of keys behind the query become kMasked.
  Tensor causal(Tensor x) {
    const auto [row, col] = positions(x);
    const Tensor sees = score_like(CUDNN_DATA_BOOLEAN);
    graph.pointwise(CUDNN_POINTWISE_CMP_GE, row, col, sees);
    const Tensor y = score_like();
    graph.select(x, graph.scalar(kMasked), sees, y);
    return y;
  }
};

}  // namespace

Graph attention_forward_graph(const AttentionProblem& problem) {
  return attention_forward_graph(problem, row_strides(problem));
}

Graph attention_forward_graph(const AttentionProblem& problem, const RowStrides& strides) {
  Parts p(problem, strides);
  Graph& g = p.graph;
  const Tensor q = p.queries(kQuery);
  Tensor scores =
      p.scaled(p.product(q, p.transposed_keys(kKey), problem.documents), g.scalar(kScale));
  if (p.is_capped()) scores = p.scaled(p.bent(scores), g.scalar(kCap));
  if (problem.shape.alibi) scores = p.sloped(scores);
  scores = p.causal(p.within_documents(scores));

  const Tensor largest = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const Tensor e = p.exp(p.pointwise(CUDNN_POINTWISE_SUB, scores, largest));
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Tensor log = g.between(kFp32, p.rows);
  g.pointwise(CUDNN_POINTWISE_LOG, sum, log);
  g.pointwise(CUDNN_POINTWISE_ADD, largest, log, p.row_numbers(kStatistics));

  const Tensor probabilities = p.score_like(kBf16);
  g.pointwise(CUDNN_POINTWISE_DIV, e, sum, probabilities);
  p.gather(probabilities, p.keys(kValue), p.outputs(kOut));
  return std::move(p.graph);
}

Graph attention_backward_graph(const AttentionProblem& problem, QueryGradient form) {
  return attention_backward_graph(problem, form, row_strides(problem));
}

Graph attention_backward_graph(const AttentionProblem& problem, QueryGradient form,
                               const RowStrides& strides) {
  Parts p(problem, strides);
  Graph& g = p.graph;
  const Dims query_dims = {p.b, p.h, p.t, p.d};
  const Dims transposed_scores = {p.t * p.t * p.h, p.t * p.t, 1, p.t};
  const Tensor scale = g.scalar(kScale);
  const Tensor q = p.queries(kQuery);
  const Tensor k_t = p.transposed_keys(kKey);
  const Tensor v_t = p.transposed_keys(kValue);
  const Tensor d_out = p.outputs(kOutGradient);

  // delta = sum over D of out * d_out. It lies in memory, because every block of keys reads it. The
  // factor of 1 stands where dropout would have its own; without it cuDNN 9.19 does not recognise
  // the whole and keeps two more matrices of T x T.
  const Tensor out_times = g.between(kFp32, query_dims);
  g.pointwise(CUDNN_POINTWISE_MUL, d_out, p.outputs(kOut), out_times);
  const Tensor delta = p.row_numbers(kDelta);
  const Tensor sum = g.between(kFp32, p.rows);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, out_times, sum);
  g.pointwise(CUDNN_POINTWISE_MUL, sum, g.scalar(kOne), delta);

  // The probabilities again.
  const Tensor statistics = p.row_numbers(kStatistics);
  Tensor bare = p.scaled(p.product(q, k_t), scale), bent;
  if (p.is_capped()) {
    bent = p.bent(bare);
    bare = p.scaled(bent, g.scalar(kCap));
  }
  if (problem.shape.alibi) bare = p.sloped(bare);
  bare = p.within_documents(bare);
  const Tensor probabilities = p.exp(p.causal(p.pointwise(CUDNN_POINTWISE_SUB, bare, statistics)));

  // Gradients of key and value heads, summed over the query heads that share them. cuDNN finds the
  // documents of every query head where those of the key heads begin, times the heads of a group.
  const auto kv_gradient = [&](Uid uid, Uid every_uid, Tensor scores, Tensor rows) {
    const Tensor left = g.between(kBf16, p.scores, transposed_scores);
    g.reshape(scores, left);
    const Tensor result = p.keys(uid);
    if (p.h == p.hkv) return p.gather(left, rows, result);
    const Tensor every_head =
        problem.documents
            ? g.real(every_uid, kBf16, query_dims, p.lying(p.h / p.hkv * strides.key), p.key_begins)
            : g.between(kBf16, query_dims);
    p.gather(left, rows, every_head);
    g.reduce(CUDNN_REDUCE_TENSOR_ADD, every_head, result);
  };
  kv_gradient(kValueGradient, kEveryValueGradient, probabilities, d_out);

  // d_scores = scale * x with x = p * (d_out V^T - delta); with a cap x - x tanh^2, in this form:
  // x (1 - tanh^2) is no engine's.
  const Tensor moved = p.pointwise(CUDNN_POINTWISE_SUB, p.product(d_out, v_t), delta);
  Tensor d_capped = p.pointwise(CUDNN_POINTWISE_MUL, moved, probabilities);
  if (p.is_capped()) {
    const Tensor square = p.pointwise(CUDNN_POINTWISE_MUL, bent, bent);
    const Tensor lost = p.pointwise(CUDNN_POINTWISE_MUL, d_capped, square);
    d_capped = p.pointwise(CUDNN_POINTWISE_SUB, d_capped, lost);
  }
  const Tensor d_scores = p.scaled(d_capped, scale);
  kv_gradient(kKeyGradient, kEveryKeyGradient, d_scores, q);

  const Tensor k = g.between(kBf16, {p.b, p.hkv, p.t, p.d}, p.lying(strides.key), p.key_begins);
  g.reshape(k_t, k);
  const Tensor d_q = p.queries(kQueryGradient);
  if (form == QueryGradient::kOrdered) {
    p.gather(d_scores, k, d_q);
  } else {
    const Tensor total =
        g.real(kQueryTotal, kFp32, query_dims,
               problem.documents ? p.lying(strides.query) : contiguous(query_dims), p.query_begins);
    p.gather(d_scores, k, total);
    g.pointwise(CUDNN_POINTWISE_IDENTITY, total, d_q);
  }
  return std::move(p.graph);
}

}  // namespace shardwright::exec::cudnn
