// SPDX-License-Identifier: Apache-2.0
#include "profiles/stack_file.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/parallel_fields.h"
#include "profiles/release_date.h"
#include "profiles/stack_ranges.h"
#include "sim/core/strategy.h"

namespace shardwright::profiles {
namespace {

const NumberRange<double> kShare(0.0, 20.0, true);  // caches lift it above 1
/// What the kernels of one operation differ by between stacks.
constexpr double kKernelSpread = 0.8;

/// `spread`: of the efficiencies; 0 where no operation that is measured runs these kernels.
void describe_group(FieldList& fields, std::string_view name, KernelGroup& group,
                    double spread = kKernelSpread) {
  fields.group(name, [&] {
    fields.add("forward_bytes", &group.forward_bytes, "byte", "memory traffic per element, forward",
               kBytesPerElement);
    fields.add("forward_kernels", &group.forward_kernels, "", "launches, forward", kLaunches);
    fields.add("backward_bytes", &group.backward_bytes, "byte",
               "memory traffic per element, backward", kBytesPerElement);
    fields.add("backward_kernels", &group.backward_kernels, "", "launches, backward", kLaunches);
    fields
        .add("forward_efficiency", &group.forward_efficiency, "",
             "share of the streaming bandwidth, forward", kShare)
        .believed(CostGroup::kMemory, spread);
    fields
        .add("backward_efficiency", &group.backward_efficiency, "",
             "share of the streaming bandwidth, backward", kShare)
        .believed(CostGroup::kMemory, spread);
    fields.add("saved_bytes", &group.saved_bytes, "byte",
               "kept for backward beside input and output, per element", kBytesPerElement);
    fields.add("saved_bytes_per_token", &group.saved_bytes_per_token, "byte",
               "statistics kept for backward, per token", kBytesPerElement);
    fields.add("forward_temporary_bytes", &group.forward_temporary_bytes, "byte",
               "per element, alive only while forward runs", kBytesPerElement);
    fields.add("backward_temporary_bytes", &group.backward_temporary_bytes, "byte",
               "per element, alive only while backward runs", kBytesPerElement);
  });
}

void describe_optimizer(FieldList& fields, OptimizerImplementation& optimizer) {
  fields.group("optimizer", [&] {
    fields.add("bytes_per_parameter", &optimizer.bytes_per_parameter, "byte",
               "memory traffic per parameter of the shard, fp32 state", kBytesPerElement);
    fields.add("temporary_master_copies", &optimizer.temporary_master_copies, "",
               "copies of the shard alive during the update", between(0.0, 100.0));
    fields.add("kernels_per_tensor", &optimizer.kernels_per_tensor, "", "launches per tensor",
               kLaunches);
    fields.add("efficiency", &optimizer.efficiency, "", "share of the streaming bandwidth", kShare)
        .believed(CostGroup::kMemory, kKernelSpread);
    fields.add("foreach", &optimizer.foreach, "", "one launch serves many tensors");
    fields.add("bucketed", &optimizer.bucketed, "",
               "gradients are summed in flat buckets, whose parts are what ranks own", {},
               Need::kOptional);
  });
}

void describe_host(FieldList& fields, HostCosts& host) {
  fields.group("host", [&] {
    fields.add("forward_launch_s", &host.forward_launch_s, "s", "per kernel, forward", kUpToAnHour)
        .believed(CostGroup::kHost, 0.8);
    fields
        .add("backward_launch_s", &host.backward_launch_s, "s", "per kernel, backward", kUpToAnHour)
        .believed(CostGroup::kHost, 0.8);
    fields.add("collective_launches", &host.collective_launches, "",
               "forward launches that a collective takes as long as", between(0.0, 1000.0),
               Need::kOptional);
    fields.add("unit_hook_s", &host.unit_hook_s, "s", "per sharded unit and direction",
               kUpToAnHour);
    fields.add("limiter_wakeup_s", &host.limiter_wakeup_s, "s",
               "after the host waited for a device event", kUpToAnHour);
    fields.add("device_allocation_s", &host.device_allocation_s, "s",
               "per cudaMalloc or cudaFree inside a step at the memory limit", at_least(0.0));
    fields.add("step_s", &host.step_s, "s", "once per step, device idle", kUpToAnHour)
        .believed(CostGroup::kHost, 1.5);
    fields.add("step_synchronizations", &host.step_synchronizations, "", "device drains per step",
               between(0.0, 1000.0));
  });
}

void describe_copies(FieldList& fields, CopyEfficiencies& copies) {
  const auto add = [&](std::string_view name, double& value, std::string_view meaning) {
    fields.add(name, &value, "", meaning, kShare).believed(CostGroup::kMemory, kKernelSpread);
  };
  fields.group("copies", [&] {
    add("cast", copies.cast, "bf16 to fp32 of a flat gradient, share of streaming");
    add("concatenate", copies.concatenate, "many tensors into one");
    add("copy", copies.copy, "one tensor into another");
    add("scale", copies.scale, "in-place multiply");
    add("add", copies.add, "accumulate");
  });
}

void describe_allocator(FieldList& fields, AllocatorSettings& allocator) {
  fields.group("allocator", [&] {
    fields.add("expandable_segments", &allocator.expandable_segments, "",
               "segments grow page by page (PyTorch's expandable_segments)", {}, Need::kOptional);
    fields.add("max_split_bytes", &allocator.max_split_bytes, "byte",
               "blocks from this size are not split (PyTorch's max_split_size_mb); 0: none",
               at_least(0.0), Need::kOptional);
  });
}

void describe_naive_attention(FieldList& fields, NaiveAttention& naive) {
  fields.group("naive_attention", [&] {
    const auto add = [&](std::string_view name, double* target, std::string_view meaning) {
      fields.add(name, target, "", meaning, between(0.0, 1e6), Need::kOptional);
    };
    add("forward_instructions", &naive.forward_instructions,
        "of a warp for a query and a key, heads in bf16; 0: no such attention");
    add("backward_instructions", &naive.backward_instructions, "the same, both passes of backward");
    add("forward_fp32_instructions", &naive.forward_fp32_instructions, "forward, heads in fp32");
    add("backward_fp32_instructions", &naive.backward_fp32_instructions, "backward, heads in fp32");
  });
}

StackFile read_stack(const DataFile& file, int depth) {
  StackFile result;
  const std::optional<DataFile> base = open_base(DataKind::kStack, file, depth);
  if (base) result = read_stack(*base, depth + 1);
  result.stack.id = file.id;
  result.stack.family =
      file.json->root().optional<std::string>("family", base ? result.stack.family : file.id);
  result.software = file.json->root().optional<std::string>("software", "");
  if (!file.description.empty()) result.stack.description = file.description;
  FieldList fields;
  describe(fields, result.stack);
  read_fields(file.json->root(), fields,
              {"schema", "id", "description", "base", "software", "family"}, base.has_value(),
              result.origins);
  return result;
}

}  // namespace

void describe(FieldList& fields, Stack& stack) {
  fields.add("memory", &stack.memory, "", "how device memory is managed");
  static const std::vector<std::string> kStrategies = strategy_names();
  fields
      .add("strategies", &stack.strategies, "", "that it has; none given: those of PyTorch", {},
           Need::kOptional)
      .one_of(kStrategies);
  describe_allocator(fields, stack.allocator);
  fields.add("attention_kernel", &stack.attention_kernel, "",
             "which of the GPU's attention parameters apply");
  describe_naive_attention(fields, stack.naive_attention);
  fields.add("packs_documents", &stack.packs_documents, "",
             "sequences hold several documents, masked from each other", {}, Need::kOptional);
  fields.add("gemm_efficiency", &stack.gemm_efficiency, "",
             "GEMMs against the library the GEMM model was fitted on", kShare);
  fields.add("splits_large_elementwise", &stack.splits_large_elementwise, "",
             "kernels over 2^31 bytes run as several");
  fields.add("fused_qkv", &stack.fused_qkv, "", "q, k and v run as one product");
  fields.add("fused_gate_up", &stack.fused_gate_up, "", "gate and up run as one product");
  fields.add("norm_saves_input", &stack.norm_saves_input, "",
             "the norm keeps its input itself, not an upcast copy");
  fields.add("repeats_kv_heads", &stack.repeats_kv_heads, "",
             "k and v are expanded to all heads before attention");
  fields.add("wraps_embedding_and_head", &stack.wraps_embedding_and_head, "",
             "embedding and head are sharded units of their own");
  fields.add("fsdp1_forward_prefetch", &stack.fsdp1_forward_prefetch, "",
             "FSDP1 gathers the next unit before the current one computes");
  fields.add("hsdp_on_fsdp1", &stack.hsdp_on_fsdp1, "",
             "hybrid sharding as in FSDP1, else as in FSDP2");
  fields.add("loss_upcasts_logits", &stack.loss_upcasts_logits, "",
             "logits are copied to fp32 before the loss");
  fields.add("keeps_logits", &stack.keeps_logits, "",
             "the trainer holds the model's output until backward has ended", {}, Need::kOptional);
  fields.add("keeps_key_values", &stack.keeps_key_values, "",
             "keys and values of all layers stay until backward has ended", {}, Need::kOptional);
  fields.add("no_sync", &stack.no_sync, "",
             "gradients are reduced after the last micro-batch only, whole ones kept until then",
             {}, Need::kOptional);
  fields.add("autocast", &stack.autocast, "",
             "fp32 parameters and residual stream; products cast their operands", {},
             Need::kOptional);
  describe_group(fields, "embedding", stack.embedding);
  describe_group(fields, "norm", stack.norm);
  describe_group(fields, "rope", stack.rope);
  describe_group(fields, "gated_activation", stack.gated_activation);
  describe_group(fields, "plain_activation", stack.plain_activation, 0);
  describe_group(fields, "residual", stack.residual);
  describe_group(fields, "loss", stack.loss);
  fields.add("loss_chunk_tokens", &stack.loss_chunk_tokens, "",
             "tokens whose logits exist at once; 0: all", between(0.0, 1e12));
  fields.add("recomputes_whole_layers", &stack.recomputes_whole_layers, "",
             "a checkpointed layer is recomputed to its end", {}, Need::kOptional);
  fields.add("gradient_accumulate_bytes", &stack.gradient_accumulate_bytes, "byte",
             "memory traffic per parameter of adding a micro-batch's gradient", kBytesPerElement);
  describe_optimizer(fields, stack.optimizer);
  fields.add("gradient_norm_bytes_per_parameter", &stack.gradient_norm_bytes_per_parameter, "byte",
             "memory traffic of the gradient norm", kBytesPerElement);
  describe_host(fields, stack.host);
  describe_copies(fields, stack.copies);
  fields.group("parallel", [&] { describe(fields, stack.parallel); });
}

StackFile load_stack(const std::string& name_or_path, const std::filesystem::path& from) {
  return read_stack(open_data_file(DataKind::kStack, name_or_path, from), 0);
}

/// How much of the text one of a preset's words tells: what it begins with, and of "NeMo from
/// 2026-06" that and a month which is not before.
static std::size_t told_by(std::string_view text, std::string_view word) {
  constexpr std::string_view kFrom = "from ";
  const std::size_t at = word.find(kFrom);
  std::string_view begin = word.substr(0, at);
  while (begin.ends_with(' ')) begin.remove_suffix(1);
  if (!text.starts_with(begin)) return 0;
  if (at == std::string_view::npos) return begin.size();
  const std::string_view month = word.substr(at + kFrom.size());
  const std::vector<int> date = release_date(text);
  return date.size() > 1 && date >= release_date(month) ? begin.size() + month.size() : 0;
}

/// The most that one of the words tells; '|' divides them.
static std::size_t most_told_by(std::string_view text, std::string_view words) {
  std::size_t most = 0;
  while (!words.empty()) {
    const std::size_t end = std::min(words.find('|'), words.size());
    most = std::max(most, told_by(text, words.substr(0, end)));
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return most;
}

/// As read_stack finds it, without reading the values.
static std::string family_of(const DataFile& file, int depth) {
  if (const auto family = file.json->root().find<std::string>("family")) return *family;
  const std::optional<DataFile> base = open_base(DataKind::kStack, file, depth);
  return base ? family_of(*base, depth + 1) : file.id;
}

StackFile load_preset(const std::string& family, std::string_view software) {
  std::string nearest = family;
  std::size_t longest = 0;
  const auto compare = [&](const std::string& name, const std::string& name_or_path) {
    if (software.empty() || !name.starts_with(family + "-")) return;
    const DataFile file = open_data_file(DataKind::kStack, name_or_path);
    const std::size_t common =
        most_told_by(software, file.json->root().optional<std::string>("software", ""));
    if (common <= longest || family_of(file, 0) != family) return;
    longest = common;
    nearest = name_or_path;
  };
  for (const std::string& name : shipped_names(DataKind::kStack)) compare(name, name);
  for (const std::filesystem::path& preset : published_presets()) {
    compare(preset.stem().string(), preset.string());
  }
  return load_stack(nearest);
}

StackFile parse_stack(std::string_view text, const std::string& name) {
  return read_stack(parse_data_file(DataKind::kStack, text, name), 0);
}

std::string to_json(const StackFile& file) {
  Stack stack = file.stack;
  FieldList fields;
  describe(fields, stack);
  std::vector<std::pair<std::string, std::string>> more;
  if (!file.software.empty()) more.emplace_back("software", file.software);
  if (stack.family != stack.id) more.emplace_back("family", stack.family);
  return write_fields(fields, file.origins,
                      data_file_head(DataKind::kStack, stack.id, stack.description, more));
}

}  // namespace shardwright::profiles
