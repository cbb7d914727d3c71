// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/operator_work.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "sim/core/base/ends.h"

namespace shardwright::profiles {
namespace {

using Arguments = std::vector<Argument>;

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How the bytes of a memory-bound operator follow from its arguments.
enum class Traffic : std::uint8_t {
  kPointwise,     // reads every tensor, writes one of the broadcast shape
  kBroadcastOut,  // the same; the first argument is written too (in place: a_ += b)
  kCopy,          // the second is read, the first written
  kReadAll,       // reads every tensor, writes little (sums, norms)
  kReadWrite,     // reads the first, writes as much (softmax, layer norm forward)
  kGradient,      // reads every tensor, writes as much as the largest
  kWriteFirst,    // writes the first (fill, zero)
  kLists,         // reads the lists of tensors; writes as much as the largest list
  kInPlaceLists,  // reads the lists, writes the first one again
  kAdam,          // reads all lists, writes all but the gradients
  kAllArguments,  // kernels that get inputs and outputs alike (Triton)
  kFirstTwice     // the first is read and written elsewhere; the others are its destination
};

struct MemoryRule {
  std::string_view name;
  Traffic traffic;
  MemoryClass memory_class;
  OpKind op;
};

constexpr MemoryClass kStream = MemoryClass::kStream;
constexpr OpKind kAnyWork = OpKind::kHostWork;

// Sorted by name.
constexpr auto kMemoryRules = std::to_array<MemoryRule>({
    {"aten::_foreach_add_", Traffic::kInPlaceLists, MemoryClass::kAdd, OpKind::kOptimizer},
    {"aten::_foreach_addcdiv_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_addcmul_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_copy_", Traffic::kInPlaceLists, MemoryClass::kCopy, OpKind::kCopyOut},
    {"aten::_foreach_div_", Traffic::kInPlaceLists, MemoryClass::kScale, OpKind::kOptimizer},
    {"aten::_foreach_lerp_", Traffic::kInPlaceLists, kStream, OpKind::kOptimizer},
    {"aten::_foreach_mul_", Traffic::kInPlaceLists, MemoryClass::kScale, OpKind::kOptimizer},
    {"aten::_foreach_norm", Traffic::kReadAll, kStream, OpKind::kGradientNorm},
    {"aten::_foreach_sqrt", Traffic::kLists, kStream, OpKind::kOptimizer},
    {"aten::_fused_adamw_", Traffic::kAdam, kStream, OpKind::kOptimizer},
    {"aten::_fused_rms_norm", Traffic::kReadWrite, kStream, OpKind::kNorm},
    {"aten::_fused_rms_norm_backward", Traffic::kGradient, kStream, OpKind::kNorm},
    {"aten::_log_softmax", Traffic::kReadWrite, kStream, OpKind::kLoss},
    {"aten::_log_softmax_backward_data", Traffic::kGradient, kStream, OpKind::kLoss},
    {"aten::_softmax", Traffic::kReadWrite, kStream, OpKind::kAttention},
    {"aten::_softmax_backward_data", Traffic::kGradient, kStream, OpKind::kAttention},
    {"aten::add", Traffic::kPointwise, MemoryClass::kAdd, kAnyWork},
    {"aten::add_", Traffic::kBroadcastOut, MemoryClass::kAdd, OpKind::kAccumulate},
    {"aten::cat", Traffic::kLists, MemoryClass::kConcatenate, OpKind::kConcatenate},
    {"aten::copy_", Traffic::kCopy, MemoryClass::kCopy, kAnyWork},
    {"aten::div", Traffic::kPointwise, MemoryClass::kScale, OpKind::kScale},
    {"aten::div_", Traffic::kBroadcastOut, MemoryClass::kScale, OpKind::kScale},
    {"aten::exp", Traffic::kPointwise, kStream, kAnyWork},
    {"aten::fill_", Traffic::kWriteFirst, kStream, OpKind::kZero},
    {"aten::gelu", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::gelu_backward", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::masked_fill_", Traffic::kBroadcastOut, kStream, OpKind::kAttention},
    {"aten::mean", Traffic::kReadAll, kStream, OpKind::kNorm},
    {"aten::mul", Traffic::kPointwise, MemoryClass::kScale, kAnyWork},
    {"aten::mul_", Traffic::kBroadcastOut, MemoryClass::kScale, OpKind::kScale},
    {"aten::native_layer_norm", Traffic::kReadWrite, kStream, OpKind::kNorm},
    {"aten::native_layer_norm_backward", Traffic::kGradient, kStream, OpKind::kNorm},
    {"aten::neg", Traffic::kPointwise, kStream, OpKind::kRope},
    {"aten::pow", Traffic::kPointwise, kStream, OpKind::kNorm},
    {"aten::rsqrt", Traffic::kPointwise, kStream, OpKind::kNorm},
    {"aten::sigmoid", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::silu", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::silu_backward", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::sub", Traffic::kPointwise, kStream, kAnyWork},
    {"aten::sum", Traffic::kReadAll, kStream, kAnyWork},
    {"aten::tanh", Traffic::kPointwise, kStream, OpKind::kActivation},
    {"aten::zero_", Traffic::kWriteFirst, kStream, OpKind::kZero},
    {"fsdp::all_gather_copy_in", Traffic::kFirstTwice, MemoryClass::kCopy, OpKind::kCopyIn},
    {"fsdp::chunk_cat", Traffic::kAllArguments, MemoryClass::kCopy, OpKind::kCopyIn},
    {"fsdp::split_with_sizes_copy", Traffic::kFirstTwice, MemoryClass::kCopy, OpKind::kCopyOut},
});
static_assert(std::is_sorted(kMemoryRules.begin(), kMemoryRules.end(),
                             [](const MemoryRule& a, const MemoryRule& b) {
                               return a.name < b.name;
                             }));

const MemoryRule* memory_rule(std::string_view name) {
  const auto* found = std::lower_bound(
      kMemoryRules.begin(), kMemoryRules.end(), name,
      [](const MemoryRule& rule, std::string_view wanted) { return rule.name < wanted; });
  if (found != kMemoryRules.end() && found->name == name) return found;
  static constexpr MemoryRule kTriton{"triton_", Traffic::kAllArguments, kStream, kAnyWork};
  // Generated kernels of torch.compile: pointwise, reductions, persistent reductions.
  for (const std::string_view prefix : {"triton_poi_", "triton_red_", "triton_per_"}) {
    if (name.starts_with(prefix)) return &kTriton;
  }
  return nullptr;
}

constexpr auto kGemms = std::to_array<std::string_view>(
    {"aten::_scaled_mm", "aten::addmm", "aten::addmm_", "aten::baddbmm", "aten::bmm",
     "aten::linear", "aten::matmul", "aten::mm"});

std::int64_t rows_of(const TensorShape& shape) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.dims.size(); ++i) {
    if (shape.dims[i] != 0 && rows > (std::int64_t{1} << 40) / shape.dims[i]) return 0;
    rows *= shape.dims[i];
  }
  return rows;
}

std::optional<OperatorWork> product(const TensorShape& a, const TensorShape& b) {
  OperatorWork result;
  Work& work = result.work;
  work.kind = WorkKind::kGemm;
  if (a.dims.size() < 2 || b.dims.size() < 2) return std::nullopt;
  work.k = last_of(a.dims, "a shape");
  if (b.dims[b.dims.size() - 2] != work.k) return std::nullopt;
  work.n = last_of(b.dims, "a shape");
  if (b.dims.size() == 2) {
    work.m = rows_of(a);  // leading extents are more rows
  } else {
    work.m = a.dims[a.dims.size() - 2];
    result.batch = 1;
    for (std::size_t i = 0; i + 2 < b.dims.size(); ++i)
      result.batch *= std::max<std::int64_t>(1, b.dims[i]);
    if (result.batch > (1 << 24)) return std::nullopt;
  }
  work.dtype_bytes = static_cast<std::uint8_t>(a.element_bytes == 0 ? 2 : a.element_bytes);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const bool sound =
      work.m > 0 && work.n > 0 && work.k > 0 && work.m < kMost && work.n < kMost && work.k < kMost;
  return sound ? std::optional(result) : std::nullopt;
}

std::optional<OperatorWork> gemm(std::string_view name, const Arguments& arguments) {
  const std::size_t first =
      name == "aten::addmm" || name == "aten::addmm_" || name == "aten::baddbmm";
  if (arguments.size() < first + 2 || !arguments[first].is_tensor() ||
      !arguments[first + 1].is_tensor()) {
    return std::nullopt;
  }
  const TensorShape& a = arguments[first].tensors[0];
  TensorShape b = arguments[first + 1].tensors[0];
  if (name == "aten::linear" && b.dims.size() == 2) std::swap(b.dims[0], b.dims[1]);
  return product(a, b);
}

/// Where an attention operator keeps q, and the order of its extents.
struct AttentionRule {
  std::string_view name;
  std::size_t query;  // index of the argument
  bool heads_first;   // [batch, heads, length, dim]; else [batch, length, heads, dim]
  bool backward;
  int causal;  // index of the argument that says so; -1: not recorded
};

constexpr auto kAttentions = std::to_array<AttentionRule>({
    {"aten::_scaled_dot_product_flash_attention", 0, true, false, 4},
    {"aten::_scaled_dot_product_flash_attention_backward", 1, true, true, -1},
    {"aten::_scaled_dot_product_cudnn_attention", 0, true, false, 6},
    {"aten::_scaled_dot_product_cudnn_attention_backward", 1, true, true, -1},
    {"aten::_scaled_dot_product_efficient_attention", 0, true, false, 6},
    {"aten::_scaled_dot_product_efficient_attention_backward", 1, true, true, -1},
    {"aten::_flash_attention_forward", 0, false, false, 8},
    {"aten::_flash_attention_backward", 1, false, true, -1},
    {"aten::_efficient_attention_forward", 0, false, false, -1},
    {"aten::_efficient_attention_backward", 1, false, true, -1},
    {"flash_attn::_flash_attn_forward", 0, false, false, 5},
    {"flash_attn::_flash_attn_backward", 1, false, true, -1},
    {"flash_attn_3::fwd", 0, false, false, -1},
    {"flash_attn_3::bwd", 1, false, true, -1},
    {"FlashAttnFunc", 0, false, false, -1},
    {"FlashAttnFuncBackward", 0, false, true, -1},
});

const AttentionRule* attention_rule(std::string_view name) {
  const auto* found = std::find_if(kAttentions.begin(), kAttentions.end(),
                                   [&](const AttentionRule& rule) { return rule.name == name; });
  return found != kAttentions.end() ? found : nullptr;
}

std::optional<OperatorWork> attention(const AttentionRule& rule, const Arguments& arguments) {
  if (arguments.size() <= rule.query || !arguments[rule.query].is_tensor()) return std::nullopt;
  const TensorShape& query = arguments[rule.query].tensors[0];
  if (query.dims.size() != 4) return std::nullopt;  // packed sequences have three extents
  const std::int64_t heads = query.dims[rule.heads_first ? 1 : 2];
  const std::int64_t length = query.dims[rule.heads_first ? 2 : 1];
  OperatorWork result;
  result.op = OpKind::kAttention;
  Work& work = result.work;
  work.kind = WorkKind::kAttention;
  work.backward = rule.backward;
  if (query.dims[0] <= 0 || heads <= 0 || query.dims[0] > (1 << 30) || heads > (1 << 20))
    return std::nullopt;
  work.m = query.dims[0] * heads;
  work.n = length;
  work.k = query.dims[3];
  work.dtype_bytes = static_cast<std::uint8_t>(query.element_bytes == 0 ? 2 : query.element_bytes);
  if (rule.causal >= 0 && static_cast<std::size_t>(rule.causal) < arguments.size()) {
    const std::string& value = arguments[static_cast<std::size_t>(rule.causal)].value;
    if (value == "False" || value == "false" || value == "0") work.causal = false;
  }
  const bool sound =
      work.m > 0 && work.n > 0 && work.k > 0 && work.n < (1 << 28) && work.k < (1 << 20);
  return sound ? std::optional(result) : std::nullopt;
}

/// Bytes of tensors whose types are known; the shape that all broadcast to, in the widest type.
struct Totals {
  double bytes = 0, largest = 0, broadcast = 0;
  bool complete = true;
  int tensors = 0;
};

Totals totals_of(const Arguments& arguments) {
  Totals totals;
  std::vector<std::int64_t> broadcast;
  int width = 0;
  for (const Argument& argument : arguments) {
    double list_bytes = 0;
    for (const TensorShape& tensor : argument.tensors) {
      if (tensor.element_bytes == 0) totals.complete = false;
      list_bytes += tensor.bytes();
      ++totals.tensors;
      if (argument.is_list) continue;
      // A scalar tensor does not promote the type.
      if (!tensor.dims.empty()) width = std::max(width, tensor.element_bytes);
      if (tensor.dims.size() > broadcast.size()) {
        broadcast.insert(broadcast.begin(), tensor.dims.size() - broadcast.size(), 1);
      }
      const std::size_t shift = broadcast.size() - tensor.dims.size();
      for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
        broadcast[shift + i] = std::max(broadcast[shift + i], tensor.dims[i]);
      }
    }
    totals.bytes += list_bytes;
    totals.largest = std::max(totals.largest, list_bytes);
  }
  TensorShape out;
  out.dims = broadcast;
  out.element_bytes = width;
  totals.broadcast = out.bytes();
  return totals;
}

std::optional<OperatorWork> memory(const MemoryRule& rule, const Arguments& arguments) {
  const Totals totals = totals_of(arguments);
  if (totals.tensors == 0 || !totals.complete || arguments[0].tensors.empty()) return std::nullopt;
  OperatorWork result;
  result.op = rule.op;
  Work& work = result.work;
  work.kind = WorkKind::kMemory;
  work.memory_class = rule.memory_class;
  double first = 0;
  for (const TensorShape& tensor : arguments[0].tensors) first += tensor.bytes();
  double bytes = totals.bytes;
  switch (rule.traffic) {
    case Traffic::kPointwise:
      bytes += totals.broadcast;
      break;
    case Traffic::kBroadcastOut:
      bytes += first;
      break;
    case Traffic::kCopy:
      if (arguments.size() < 2 || !arguments[0].is_tensor() || !arguments[1].is_tensor()) {
        return std::nullopt;
      }
      // A broadcast source is read once.
      bytes = first + arguments[1].tensors[0].bytes();
      if (arguments[0].tensors[0].element_bytes != arguments[1].tensors[0].element_bytes) {
        work.memory_class = MemoryClass::kCast;
      }
      break;
    case Traffic::kReadAll:
    case Traffic::kAllArguments:
      break;
    case Traffic::kReadWrite:
      bytes += first;
      break;
    case Traffic::kGradient:
    case Traffic::kLists:
      bytes += totals.largest;
      break;
    case Traffic::kFirstTwice:
      bytes = 2 * first;
      break;
    case Traffic::kWriteFirst:
      bytes = first;
      break;
    case Traffic::kInPlaceLists:
      bytes += first;
      break;
    case Traffic::kAdam: {
      // parameters, gradients, two moments: all are read, all but the gradients written.
      double written = first;
      for (std::size_t i = 2; i < std::min<std::size_t>(arguments.size(), 4); ++i) {
        for (const TensorShape& tensor : arguments[i].tensors) written += tensor.bytes();
      }
      bytes += written;
      break;
    }
  }
  if (!(bytes > 0 && bytes < 1e15)) return std::nullopt;
  work.bytes = static_cast<std::int64_t>(bytes);
  return result;
}

}  // namespace

OperatorClass class_of(std::string_view name) {
  if (std::find(kGemms.begin(), kGemms.end(), name) != kGemms.end()) return OperatorClass::kGemm;
  if (attention_rule(name) != nullptr) return OperatorClass::kAttention;
  return memory_rule(name) != nullptr ? OperatorClass::kMemory : OperatorClass::kUnknown;
}

bool only_forward(std::string_view name) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {"aten::linear", "aten::silu", "aten::gelu", "aten::rms_norm", "aten::layer_norm",
       "aten::scaled_dot_product_attention", "aten::embedding", "FlashAttnFunc"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

std::optional<OperatorWork> work_of(std::string_view name, const Arguments& arguments) {
  if (arguments.empty()) return std::nullopt;
  if (const AttentionRule* rule = attention_rule(name)) return attention(*rule, arguments);
  if (const MemoryRule* rule = memory_rule(name)) return memory(*rule, arguments);
  return class_of(name) == OperatorClass::kGemm ? gemm(name, arguments) : std::nullopt;
}

std::string_view kernel_family(std::string_view kernel) {
  const auto any = [&](std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return contains(kernel, part); });
  };
  if (kernel.starts_with("nccl")) return "collective";
  if (any({"flash_fwd", "flash_bwd", "fmha", "flash::", "sdpa", "FlashAttn"})) return "attention";
  if (contains(kernel, "fbgemm")) return "other";
  if (any({"gemm", "nvjet", "splitKreduce", "gemv", "cublasLt", "s16816", "s1688"})) {
    return "GEMM";
  }
  if (any({"multi_tensor_apply", "FusedAdam", "fused_adam"})) return "optimizer";
  if (any({"conv", "wgrad", "dgrad", "fprop", "winograd", "fft2d", "bn_fw", "bn_bw", "nchw"})) {
    return "convolution";
  }
  if (any({"elementwise", "copy_kernel", "CatArray", "reduce_kernel", "Memcpy", "Memset",
           "layer_norm", "rms_norm", "softmax", "triton_"})) {
    return "copy, element-wise or reduction";
  }
  return "other";
}

}  // namespace shardwright::profiles
