// SPDX-License-Identifier: Apache-2.0
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <nvrtc.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "exec/cudnn/attention.h"
#include "exec/libraries/loaded_library.h"
#include "sim/core/base/error.h"

namespace shardwright::exec::cudnn {

namespace fe = cudnn_frontend;
using fe::graph::Pointwise_attributes;
using fe::graph::Tensor_attributes;
using kernels::cuda::AttentionProblem;
using Mode = fe::PointwiseMode_t;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Scores = std::shared_ptr<fe::graph::Graph>;  // what modifies them

namespace {

/// Throws Error in the front end's words, in one line.
void check(fe::error_t status) {
  if (status.is_good()) return;
  std::string words = status.get_message();
  std::replace(words.begin(), words.end(), '\n', ' ');
  throw Error(words, ExitCode::kFailed);
}

void check(cudnnStatus_t status, const std::string& call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  check(fe::error_t(fe::error_code_t::CUDNN_BACKEND_API_FAILED,
                    call + " failed: " + fe::detail::get_last_error_string_()));
}

}  // namespace

const std::string& library_refusal() {
  static const std::string refusal = []() -> std::string {
    try {
      cudnnGetVersion();
      int major = 0, minor = 0;
      nvrtcVersion(&major, &minor);
      // NVRTC looks for its builtins by name.
      const std::string why =
          libraries::why_without(dlopen(SHARDWRIGHT_NVRTC_FILE, RTLD_LAZY | RTLD_NOLOAD),
                                 fmt::format("libnvrtc-builtins.so.{}.{}", major, minor));
      return why.empty() ? why : fmt::format("has no engines without NVRTC's builtins ({})", why);
    } catch (const Error& error) {
      return std::string("has no engines: ") + error.what();
    }
  }();
  return refusal;
}

std::string library_name() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::shared_ptr<cudnnContext> make_handle() {
  cudnnHandle_t handle = nullptr;
  check(cudnnCreate(&handle), "cudnnCreate");
  return {handle, cudnnDestroy};
}

struct AttentionGraph::Graph : fe::graph::Graph {
  Graph(const AttentionProblem& its_problem, const RowStrides& its_strides, const Gpu& gpu)
      : problem(its_problem), strides(its_strides) {
    set_io_data_type(fe::DataType_t::BFLOAT16);
    set_intermediate_data_type(fe::DataType_t::FLOAT);
    set_compute_data_type(fe::DataType_t::FLOAT);
    if (!gpu.json.empty()) {
      auto device = std::make_shared<fe::DeviceProperties>();
      const char* const text = gpu.json.c_str();  // with the zero behind it
      check(device->deserialize({text, text + gpu.json.size() + 1}));
      set_device_properties(device).set_sm_version(gpu.compute_capability);
    }
    if (!problem.documents) return;
    const auto list = [&](std::int64_t array, std::int64_t length, fe::DataType_t type) {
      Tensor result = tensor(Tensor_attributes().set_uid(array).set_data_type(type));
      result->set_dim({length, 1, 1, 1}).set_stride({1, 1, 1, 1});
      return result;
    };
    for (std::size_t i = 0; i < begins.size(); ++i) {
      begins[i] = list(kBegins + static_cast<std::int64_t>(i), batch + 1, fe::DataType_t::INT64);
    }
    lengths = list(kLengths, batch, fe::DataType_t::INT32);
  }

  /// Inside [tokens, ...] rows, heads are [B, heads, T, D] by strides, no copy.
  Tensor place(std::int64_t array, Tensor x = nullptr) {
    const bool of_keys =
        array == kKey || array == kValue || array == kKeyGradient || array == kValueGradient;
    const bool of_outputs = array == kOut || array == kOutGradient, of_rows = array == kStatistics;
    const std::size_t row = of_keys ? 1 : of_outputs ? 2 : of_rows ? 3 : 0;
    const std::int64_t count = of_keys ? problem.shape.kv_heads : h;
    const std::int64_t width = of_rows ? 1 : problem.shape.head_dim;
    if (x == nullptr) x = tensor(Tensor_attributes());
    x->set_uid(array).set_output(true).set_dim({batch, count, t, width});
    x->set_stride({t * strides[row], width, strides[row], 1}).set_ragged_offset(begins[row]);
    if (of_rows) x->set_data_type(fe::DataType_t::FLOAT);
    if (of_rows && !problem.documents) x->set_stride({h * t, t, 1, 1});
    return x;
  }

  static Tensor combine(const Scores& graph, const Tensor& a, Mode mode, const Tensor& b) {
    return graph->pointwise(a, b, Pointwise_attributes().set_mode(mode));
  }
  static Tensor number(double value) {
    return std::make_shared<Tensor_attributes>(static_cast<float>(value));
  }
  /// Scores with a cap or slopes, and masked: beside a modifier of scores the front end wants none.
  Tensor modified(const Scores& graph, Tensor x) {
    using namespace fe::graph::attn::score_modifiers;
    const double cap = problem.shape.softcap;
    if (cap != 0) {
      const Tensor share = combine(graph, x, Mode::MUL, number(1 / cap));
      bent = graph->pointwise(share, Pointwise_attributes().set_mode(Mode::TANH_FWD));
      x = combine(graph, bent, Mode::MUL, number(cap));
    }
    if (problem.shape.alibi) {
      // The front end's slopes are those of all heads of a model; these are of some.
      Tensor slopes;
      std::int64_t bytes = 0;
      x = alibi_mask(graph, x, slopes, h, bytes);
      slopes->set_uid(kSlopes).set_stride({kSlopeStride * h, kSlopeStride, 1, 1});
    }
    if (problem.documents) x = padding_mask(graph, x, lengths, lengths);
    return causal_mask(graph, x);
  }
  /// x - x tanh^2: x (1 - tanh^2) is no engine's, and the front end's own none on Ampere.
  Tensor uncapped(const Scores& graph, const Tensor& x) {
    const Tensor lost = combine(graph, x, Mode::MUL, combine(graph, bent, Mode::MUL, bent));
    return combine(graph, x, Mode::SUB, lost);
  }
  template <class Attributes>
  void set_scores(Attributes& attributes) {
    const bool plain = problem.shape.has_plain_scores();
    attributes.set_attn_scale(static_cast<float>(problem.shape.scale)).set_causal_mask(plain);
    if (!plain) {
      attributes.set_score_mod(
          [this](const Scores& graph, Tensor x) { return modified(graph, x); });
    }
    if (!problem.documents) return;
    attributes.set_padding_mask(plain).set_seq_len_q(lengths).set_seq_len_kv(lengths);
    attributes.set_max_total_seq_len_q(problem.shape.tokens());
    attributes.set_max_total_seq_len_kv(problem.shape.tokens());
  }

  void add_forward() {
    fe::graph::SDPA_attributes attributes;
    set_scores(attributes);
    attributes.set_generate_stats(true);
    const auto [out, rows] = sdpa(place(kQuery), place(kKey), place(kValue), attributes);
    place(kOut, out);
    place(kStatistics, rows);
  }
  void add_backward(QueryGradient form) {
    fe::graph::SDPA_backward_attributes attributes;
    set_scores(attributes);
    attributes.set_deterministic_algorithm(form == QueryGradient::kOrdered);
    if (problem.shape.softcap != 0) {
      attributes.set_score_mod_bprop(
          [this](const Scores& graph, Tensor x) { return uncapped(graph, x); });
    }
    const auto [d_query, d_key, d_value] =
        sdpa_backward(place(kQuery), place(kKey), place(kValue), place(kOut), place(kOutGradient),
                      place(kStatistics), attributes);
    place(kQueryGradient, d_query);
    place(kKeyGradient, d_key);
    place(kValueGradient, d_value);
  }

  /// Of the best engine and the front end; no engine that needs more is compiled.
  Bytes least_workspace_bytes() {
    fe::EngineConfigList engines = plans.get_barred_engine_configs();
    Bytes bytes = 0;
    check(fe::detail::get_workspace_size(engines.front(), bytes));
    plans.set_max_workspace_allowed(bytes);
    return bytes + get_fe_workspace_size_subtree();
  }

  const AttentionProblem problem;
  const RowStrides strides;
  const std::int64_t batch = problem.documents ? problem.most_documents : problem.shape.batch;
  const std::int64_t h = problem.shape.heads, t = problem.shape.seq;
  std::array<Tensor, kernels::cuda::kMostDocumentStrides> begins;
  Tensor lengths;
  Tensor bent;  // tanh of scores by their cap
};

AttentionGraph::AttentionGraph(const AttentionProblem& problem, const RowStrides& strides,
                               const Gpu& gpu, std::optional<QueryGradient> form)
    : graph_(std::make_shared<Graph>(problem, strides, gpu)) {
  form ? graph_->add_backward(*form) : graph_->add_forward();
  check(graph_->validate());
  check(graph_->build_operation_graph(gpu.handle));
  check(graph_->create_execution_plans({fe::HeurMode_t::A}));
  workspace_bytes_ = graph_->least_workspace_bytes();
}

std::string AttentionGraph::engine() const {
  std::string name;
  check(graph_->get_plan_name_at_index(0, name));
  return name;
}

void AttentionGraph::compile() {
  check(graph_->build_plans());
}

void AttentionGraph::execute(cudnnHandle_t handle, Arrays arrays, void* workspace,
                             cudaStream_t stream) const {
  check(cudnnSetStream(handle, stream), "cudnnSetStream");
  check(graph_->execute(handle, arrays, workspace));
}

}  // namespace shardwright::exec::cudnn
