// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kineto_from_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

namespace shardwright::testing {
namespace {

/// A kernel of an eager operator: `bytes` per element of the operation, 0: a small one.
struct Kernel {
  const char* op;    // "aten::pow"
  const char* dims;  // in terms of the operation's extents
  const char* types;
  double bytes;  // moved in all
  const char* kernel;
};

constexpr const char* kVectorized =
    "void at::native::vectorized_elementwise_kernel<4, at::native::Functor>";
constexpr const char* kReduce =
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >";

class Writer {
 public:
  explicit Writer(const KinetoJob& job) : job_(job), model_(*job.model), plan_(*job.plan) {
    for_each_op(*job.schedule, [this](const OpInstance& at, const Op& op) {
      instances_.push_back(at);
      ops_.push_back(&op);
    });
    for (const Span& span : job.timeline->spans) device_[span.id] = &span;
    tokens_ = fmt::format("{}, {}", plan_.micro_batch, plan_.seq_len);
    rows_ = plan_.micro_batch * plan_.seq_len;
  }

  std::string write() {
    out_ = R"({"schemaVersion": 1, "deviceProperties": [)";
    for (int i = 0; i < job_.devices; ++i) {
      out_ += fmt::format(
          R"({}{{"id": {}, "name": "{}", "totalGlobalMem": 85017755648, "numSms": 132}})",
          i > 0 ? ", " : "", i, job_.gpu);
    }
    out_ += fmt::format(
        R"(], "distributedInfo": {{"backend": "nccl", "rank": {}, "world_size": {}, "nccl_version": "2.21.5"}}, "baseTimeNanoseconds": 1750000000000000000, "traceEvents": [)",
        job_.rank, plan_.gpus);
    for (int step = 0; step < job_.steps; ++step) {
      base_ns_ = (step + 1) * (job_.timeline->step_ns + 1000);
      range(fmt::format("ProfilerStep#{}", step + 5), "user_annotation", 7, 0,
            job_.timeline->step_ns, "");
      for (const Span& span : job_.timeline->host) {
        const auto found = device_.find(span.id);
        if (found != device_.end()) operation(span, *found->second);
      }
    }
    return out_ + "\n]}\n";
  }

 private:
  void event(const std::string& members) {
    out_ += first_ ? "\n{" : ",\n{";
    first_ = false;
    out_ += members;
    out_ += '}';
  }
  static std::string us(Nanoseconds ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

  void range(const std::string& name, const char* category, int thread, Nanoseconds begin,
             Nanoseconds end, const std::string& args) {
    event(fmt::format(
        R"("ph": "X", "cat": "{}", "name": "{}", "pid": 7, "tid": {}, "ts": {}, "dur": {}, "args": {{{}}})",
        category, name, thread, us(base_ns_ + begin), us(end - begin), args));
  }

  std::string shape(std::string text) const {
    const auto put = [&](const std::string& key, const std::string& value) {
      for (auto at = text.find(key); at != std::string::npos; at = text.find(key)) {
        text.replace(at, key.size(), value);
      }
    };
    put("BS", tokens_);
    put("BB", fmt::format("{}", plan_.micro_batch));
    put("SS", fmt::format("{}", plan_.seq_len));
    put("TT", fmt::format("{}", rows_));
    put("HK", fmt::format("{}", model_.kv_heads));
    put("HH", fmt::format("{}", model_.heads));
    put("DD", fmt::format("{}", model_.head_dim));
    put("DH", fmt::format("{}", model_.head_dim / 2));
    put("CC", fmt::format("{}", model_.hidden));
    put("FF", fmt::format("{}", model_.ffn));
    put("VV", fmt::format("{}", model_.vocab));
    put("bf", "\"c10::BFloat16\"");
    put("fp", "\"float\"");
    put("cx", "\"c10::complex<float>\"");
    return text;
  }

  /// The operators that PyTorch runs for an operation. Empty: nothing that the importer knows.
  std::vector<Kernel> kernels_of(const Op& op) const {
    const bool backward = op.phase == Phase::kBackward;
    switch (op.kind) {
      case OpKind::kNorm:
        if (!backward) {
          return {{"aten::copy_", "[[BS, CC], [BS, CC], []]", "[fp, bf, \"\"]", 6, kVectorized},
                  {"aten::pow", "[[BS, CC], []]", "[fp, \"\"]", 8, kVectorized},
                  {"aten::mean", "[[BS, CC], [], []]", "[fp, \"\", \"\"]", 4, kReduce},
                  {"aten::add", "[[BS, 1], [], []]", "[fp, \"\", \"\"]", 0, kVectorized},
                  {"aten::rsqrt", "[[BS, 1]]", "[fp]", 0, kVectorized},
                  {"aten::mul", "[[BS, CC], [BS, 1]]", "[fp, fp]", 8, kVectorized},
                  {"aten::copy_", "[[BS, CC], [BS, CC], []]", "[bf, fp, \"\"]", 6, kVectorized},
                  {"aten::mul", "[[BS, CC], [CC]]", "[bf, bf]", 4, kVectorized}};
        }
        return {{"aten::mul", "[[BS, CC], [CC]]", "[bf, bf]", 4, kVectorized},
                {"aten::mul", "[[BS, CC], [BS, CC]]", "[bf, bf]", 6, kVectorized},
                {"aten::sum", "[[BS, CC], []]", "[bf, \"\"]", 2, kReduce},
                {"aten::copy_", "[[BS, CC], [BS, CC], []]", "[fp, bf, \"\"]", 6, kVectorized},
                {"aten::mul", "[[BS, CC], [BS, 1]]", "[fp, fp]", 8, kVectorized},
                {"aten::mul", "[[BS, CC], [BS, CC]]", "[fp, fp]", 12, kVectorized},
                {"aten::sum", "[[BS, CC], []]", "[fp, \"\"]", 4, kReduce},
                {"aten::mul", "[[BS, 1], []]", "[fp, \"\"]", 0, kVectorized},
                {"aten::pow", "[[BS, 1], []]", "[fp, \"\"]", 0, kVectorized},
                {"aten::mul", "[[BS, 1], [BS, 1]]", "[fp, fp]", 0, kVectorized},
                {"aten::div", "[[BS, 1], []]", "[fp, \"\"]", 0, kVectorized},
                {"aten::pow", "[[BS, CC], []]", "[fp, \"\"]", 8, kVectorized},
                {"aten::mul", "[[BS, CC], []]", "[fp, \"\"]", 8, kVectorized},
                {"aten::mul", "[[BS, CC], [BS, 1]]", "[fp, fp]", 8, kVectorized},
                {"aten::add", "[[BS, CC], [BS, CC], []]", "[fp, fp, \"\"]", 12, kVectorized},
                {"aten::copy_", "[[BS, CC], [BS, CC], []]", "[bf, fp, \"\"]", 6, kVectorized}};
      case OpKind::kRope: {
        std::vector<Kernel> list;
        for (const bool query : {true, false}) {
          const char* real =
              query ? "[[BS, HH, DD], [BS, HH, DD], []]" : "[[BS, HK, DD], [BS, HK, DD], []]";
          list.push_back({"aten::copy_", real, "[fp, bf, \"\"]", 6, kVectorized});
          if (backward)
            list.push_back({"aten::_conj_physical", "[[1, DH]]", "[cx]", 0, kVectorized});
          list.push_back({"aten::mul",
                          query ? "[[BS, HH, DH], [1, DH]]" : "[[BS, HK, DH], [1, DH]]", "[cx, cx]",
                          8, kVectorized});
          list.push_back({"aten::copy_", real, "[bf, fp, \"\"]", 6, kVectorized});
        }
        return list;
      }
      case OpKind::kActivation:
        if (!backward) {
          return {{"aten::silu", "[[BS, FF]]", "[bf]", 4, kVectorized},
                  {"aten::mul", "[[BS, FF], [BS, FF]]", "[bf, bf]", 6, kVectorized}};
        }
        return {{"aten::mul", "[[BS, FF], [BS, FF]]", "[bf, bf]", 6, kVectorized},
                {"aten::mul", "[[BS, FF], [BS, FF]]", "[bf, bf]", 6, kVectorized},
                {"aten::silu_backward", "[[BS, FF], [BS, FF]]", "[bf, bf]", 6, kVectorized}};
      case OpKind::kResidual:
        return {{"aten::add", "[[BS, CC], [BS, CC], []]", "[bf, bf, \"\"]", 6, kVectorized}};
      case OpKind::kLoss:
        if (op.work.bytes < 10 * rows_ * model_.vocab) {
          const char* types = backward ? "[bf, fp, \"\"]" : "[fp, bf, \"\"]";
          return {{"aten::copy_", "[[BS, VV], [BS, VV], []]", types, 6, kVectorized}};
        }
        if (!backward) {
          return {{"aten::copy_", "[[BS, VV], [BS, VV], []]", "[fp, bf, \"\"]", 6, kVectorized},
                  {"aten::_log_softmax", "[[TT, VV], [], []]", "[fp, \"\", \"\"]", 8,
                   "void cunn_SoftMaxForward"},
                  {"aten::nll_loss_forward", "[[TT, VV], [TT]]", "[fp, \"long int\"]", 0,
                   "void nll_loss_forward_reduce"}};
        }
        return {{"aten::zero_", "[[TT, VV]]", "[fp]", 4, kVectorized},
                {"aten::_log_softmax_backward_data", "[[TT, VV], [TT, VV], [], []]",
                 "[fp, fp, \"\", \"\"]", 12, "void cunn_SoftMaxBackward"},
                {"aten::copy_", "[[BS, VV], [BS, VV], []]", "[bf, fp, \"\"]", 6, kVectorized}};
      default:
        return {};
    }
  }

  /// `parts` are the shares of the device time.
  void launches(const Span& host, const Span& device, const std::vector<Kernel>& kernels,
                int thread, int stream, const std::string& comm = {}) {
    double total = 0;
    for (const Kernel& kernel : kernels) total += kernel.bytes;
    const auto n = static_cast<Nanoseconds>(kernels.size());
    const double device_ns = static_cast<double>(device.end_ns - device.begin_ns);
    const auto small_ns = static_cast<double>(job_.small_kernel_ns);
    double at = static_cast<double>(device.begin_ns);
    const Nanoseconds each = (host.end_ns - host.begin_ns) / n;
    Nanoseconds begin = host.end_ns - each * n;
    for (const Kernel& kernel : kernels) {
      // Each kernel takes what a launch takes on the device, and its share of the bytes' time.
      const double share = n == 1 ? device_ns
                                  : small_ns + (device_ns - small_ns * static_cast<double>(n)) *
                                                   kernel.bytes / total;
      ++correlation_;
      range(kernel.op, "cpu_op", thread, begin, begin + each,
            fmt::format(R"("Input Dims": {}, "Input type": {})", shape(kernel.dims),
                        shape(kernel.types)));
      range("cudaLaunchKernel", "cuda_runtime", thread, begin + each / 4, begin + each / 2,
            fmt::format(R"("correlation": {})", correlation_));
      const auto from = static_cast<Nanoseconds>(at);
      at += share;
      event(fmt::format(
          R"("ph": "X", "cat": "kernel", "name": "{}", "pid": 0, "tid": {}, "ts": {}, "dur": {}, "args": {{"device": 0, "stream": {}, "correlation": {}{}}})",
          kernel.kernel, stream, us(base_ns_ + from), us(static_cast<Nanoseconds>(at) - from),
          stream, correlation_, comm));
      begin += each;
    }
  }

  void operation(const Span& host, const Span& device) {
    const Op& op = *ops_[static_cast<std::size_t>(host.id)];
    const OpInstance& at = instances_[static_cast<std::size_t>(host.id)];
    const Work& work = op.work;
    const bool backward = op.phase == Phase::kBackward || op.phase == Phase::kReduce;
    const int thread = backward ? 8 : 7;
    const int stream = 7 + 10 * op.stream;
    const bool gradient =
        op.phase == Phase::kBackward && !is_collective(op.kind) && op.kind != OpKind::kCastShard;
    if (gradient) {
      range("autograd::engine::evaluate_function: NodeBackward0", "cpu_op", thread, host.begin_ns,
            host.end_ns, "");
    }
    const std::string unit = unit_name(*job_.schedule, at.unit + op.target);
    const bool sharding = op.kind == OpKind::kCastShard || op.kind == OpKind::kCopyOut ||
                          op.kind == OpKind::kCopyIn || is_collective(op.kind);
    if (sharding) {
      range(fmt::format("FSDP::{} ({})", backward ? "post_backward_reduce" : "all_gather", unit),
            "user_annotation", thread, host.begin_ns, host.end_ns, "");
    }
    if (op.phase == Phase::kOptimizer) {
      if (op.kind == OpKind::kOptimizer) {
        range("Optimizer.step#AdamW.step", "user_annotation", thread, host.begin_ns, host.end_ns,
              "");
      }
    }
    switch (work.kind) {
      case WorkKind::kGemm: {
        const std::string dims =
            fmt::format("[[{}, {}], [{}, {}]]", work.m, work.k, work.k, work.n);
        launches(host, device,
                 {{"aten::mm", dims.c_str(), "[bf, bf]", 1,
                   "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64"}},
                 thread, stream);
        break;
      }
      case WorkKind::kAttention:
        if (work.backward) {
          launches(host, device,
                   {{"aten::_scaled_dot_product_flash_attention_backward",
                     "[[BB, HH, SS, DD], [BB, HH, SS, DD], [BB, HH, SS, DD]]", "[bf, bf, bf]", 1,
                     "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"}},
                   thread, stream);
        } else {
          launches(host, device,
                   {{"aten::_scaled_dot_product_flash_attention",
                     "[[BB, HH, SS, DD], [BB, HH, SS, DD], [BB, HH, SS, DD]]", "[bf, bf, bf]", 1,
                     "void pytorch_flash::flash_fwd_kernel"}},
                   thread, stream);
        }
        break;
      case WorkKind::kCollective: {
        const std::int64_t elements = work.bytes / work.dtype_bytes;
        const std::int64_t shard = elements / plan_.gpus;
        const bool gather = op.kind == OpKind::kAllGather;
        std::string ranks;
        for (std::int64_t r = 0; r < plan_.gpus; ++r)
          ranks += fmt::format("{}{}", r > 0 ? ", " : "", r);
        const std::string comm = fmt::format(
            R"(, "Collective name": "{}", "In msg nelems": {}, "Out msg nelems": {}, "Group size": {}, "dtype": "{}", "Process Group Name": "0", "Process Group Ranks": "[{}]")",
            gather ? "_allgather_base" : "_reduce_scatter_base", gather ? shard : elements,
            gather ? elements : shard, plan_.gpus, work.dtype_bytes == 2 ? "BFloat16" : "Float",
            ranks);
        launches(host, device,
                 {{"record_param_comms", "[]", "[]", 1,
                   gather ? "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                          : "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<"
                            "4096ul>)"}},
                 thread, stream, comm);
        break;
      }
      case WorkKind::kMemory:
        memory(op, host, device, thread, stream);
        break;
      default:
        break;
    }
  }

  void memory(const Op& op, const Span& host, const Span& device, int thread, int stream) {
    const std::int64_t bytes = op.work.bytes;
    if (bytes <= 0) return;
    if (op.kind == OpKind::kOptimizer) {
      const std::string one = fmt::format("[[{}]]", bytes / 28);
      const std::string dims = fmt::format("[{0}, {0}, {0}, {0}]", one);
      launches(host, device,
               {{"aten::_fused_adamw_", dims.c_str(), "[[fp], [fp], [fp], [fp]]", 1,
                 "void multi_tensor_apply_kernel"}},
               thread, stream);
      return;
    }
    if (op.kind == OpKind::kGradientNorm || op.kind == OpKind::kClip) {
      const bool norm = op.kind == OpKind::kGradientNorm;
      const std::string dims = fmt::format("[[[{}]], []]", bytes / (norm ? 4 : 8));
      launches(host, device,
               {{norm ? "aten::_foreach_norm" : "aten::_foreach_mul_", dims.c_str(), "[[fp], \"\"]",
                 1, "void multi_tensor_apply_kernel"}},
               thread, stream);
      return;
    }
    if (op.kind == OpKind::kCopyOut) {
      const std::string dims = fmt::format("[[{}], [], [], []]", bytes / 4);
      launches(host, device,
               {{"fsdp::split_with_sizes_copy", dims.c_str(), "[bf, \"\", \"\", \"\"]", 1,
                 "void split_with_sizes_copy_out_contiguous_no_cast_kernel"}},
               thread, stream);
      return;
    }
    if (op.kind == OpKind::kCopyIn) {
      const std::string dims = fmt::format("[[[{0}]], [], [], [{0}]]", bytes / 6);
      launches(host, device,
               {{"fsdp::chunk_cat", dims.c_str(), "[[bf], \"\", \"\", fp]", 1,
                 "void chunk_cat_cuda_kernel"}},
               thread, stream);
      return;
    }
    if (op.kind == OpKind::kCastShard) {
      const std::string dims = fmt::format("[[{0}], [{0}], []]", bytes / 6);
      launches(host, device, {{"aten::copy_", dims.c_str(), "[bf, fp, \"\"]", 1, kVectorized}},
               thread, stream);
      return;
    }
    const std::vector<Kernel> kernels = kernels_of(op);
    if (!kernels.empty()) {
      launches(host, device, kernels, thread, stream);
      return;
    }
    const std::string dims = fmt::format("[[{0}], [{0}], []]", bytes / 6);
    launches(host, device, {{"aten::add_", dims.c_str(), "[bf, bf, \"\"]", 1, kVectorized}}, thread,
             stream);
  }

  const KinetoJob& job_;
  const Model& model_;
  const Plan& plan_;
  std::vector<OpInstance> instances_;
  std::vector<const Op*> ops_;
  std::map<OpId, const Span*> device_;
  std::string tokens_, out_;
  std::int64_t rows_ = 0;
  std::int64_t correlation_ = 0;
  Nanoseconds base_ns_ = 0;
  bool first_ = true;
};

}  // namespace

std::string kineto_trace(const KinetoJob& job) {
  return Writer(job).write();
}

}  // namespace shardwright::testing
