// SPDX-License-Identifier: Apache-2.0
#include "profiles/stack_file.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/parallelism.h"
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
  result.stack.offered = file.json->root().optional<bool>("offered", true);
  result.software = file.json->root().optional<std::string>("software", "");
  if (!file.description.empty()) result.stack.description = file.description;
  FieldList fields;
  describe(fields, result.stack);
  read_fields(file.json->root(), fields,
              {"schema", "id", "description", "base", "software", "family", "offered"},
              base.has_value(), result.origins);
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

namespace {

template <typename Enum>
const std::vector<std::string>& known_words() {
  static const std::vector<std::string> words = words_of<Enum>();
  return words;
}

/// Adds fields that a file may leave out.
struct Adder {
  FieldList& fields;

  Field& operator()(std::string_view name, FieldTarget target, std::string_view unit,
                    std::string_view meaning, NumberRange<double> accepted = {}) const {
    return fields.add(name, target, unit, meaning, accepted, Need::kOptional);
  }
};

void describe_scope(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("does", &parallel.does, "", "what it does beside sharding over data-parallel ranks")
      .one_of(feature_words());
}

void describe_attention(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("fused_attention", &parallel.fused_attention, "",
      "attention is one kernel where the plan says flash");
  add("tensor_cores_want_16_bytes", &parallel.tensor_cores_want_16_bytes, "",
      "products of eager attention whose rows are not whole 16 bytes run on the fp32 cores");
  add("score_bytes", &parallel.score_bytes, "byte", "eager attention keeps for backward, per score",
      kBytesPerElement);
  add("score_working_bytes", &parallel.score_working_bytes, "byte",
      "made while its backward runs, per score", kBytesPerElement);
  add("score_forward_traffic_bytes", &parallel.score_forward_traffic_bytes, "byte",
      "that eager attention moves forward, per score", kBytesPerElement);
  add("score_backward_traffic_bytes", &parallel.score_backward_traffic_bytes, "byte",
      "that eager attention moves backward, per score", kBytesPerElement);
  add("checkpointed_norm_forward_bytes", &parallel.checkpointed_norm_forward_bytes, "byte",
      "traffic of norms forward where layers are checkpointed whole; 0: as elsewhere",
      kBytesPerElement);
  add("checkpointed_norm_backward_bytes", &parallel.checkpointed_norm_backward_bytes, "byte",
      "the same backward", kBytesPerElement);
  add("layer_saved_bytes", &parallel.layer_saved_bytes, "byte",
      "kept per hidden element and layer beyond what kernels keep", kBytesPerElement);

  fields.group("sinks", [&] {
    SinkSoftware& sinks = parallel.sinks;
    add("attention_share", &sinks.attention_share, "",
        "what attention with sinks reaches of fused attention over all scores; 0: as other "
        "attention",
        between(0.0, 1.0));
    add("fp8_backward_share", &sinks.fp8_backward_share, "",
        "the same of its backward in fp8; 0: it stays in bf16", between(0.0, 1.0));
    add("fp8_input_bytes", &sinks.fp8_input_bytes, "byte",
        "moved before attention with sinks in fp8, an element of its input", between(0.0, 100.0));
  });
  fields.group("scaled_rope", [&] {
    KernelGroup& kernels = parallel.scaled_rope.kernels;
    add("unfused", &parallel.scaled_rope.unfused, "",
        "rotary embeddings with scaled sines and cosines (YaRN) go by kernels of their own");
    add("forward_bytes", &kernels.forward_bytes, "byte", "memory traffic per element, forward",
        kBytesPerElement);
    add("forward_kernels", &kernels.forward_kernels, "", "launches, forward", kLaunches);
    add("backward_bytes", &kernels.backward_bytes, "byte", "memory traffic per element, backward",
        kBytesPerElement);
    add("backward_kernels", &kernels.backward_kernels, "", "launches, backward", kLaunches);
  });
}

void describe_tensor(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("vocabulary_parallel_loss", &parallel.vocabulary_parallel_loss, "",
      "the loss works on each tensor rank's part of the vocabulary; false: logits are gathered");
  add("async_tensor_backward", &parallel.async_tensor_backward, "",
      "collectives of the input's gradient run beside products");
  add("tp_overlap", &parallel.tp_overlap, "",
      "collectives of tensor parallelism hide behind GEMMs, where the plan does not say")
      .one_of(known_words<TensorOverlap>());
  add("adapted", &parallel.adapted, "",
      "matrices of a layer beside which LoRA's adapters are: all, those of attention, or those "
      "that make queries, keys and values")
      .one_of(known_words<Adapted>());
  add("cp_comm", &parallel.cp_comm, "", "context parallelism, where the plan does not say")
      .one_of(known_words<ContextComm>());

  fields.group("tensor", [&] {
    TensorSoftware& tensor = parallel.tensor;
    add("overlap_splits", &tensor.overlap_splits, "",
        "pieces of a GEMM whose reduce-scatter overlaps with it", between(1.0, 64.0));
    add("overlap_sms", &tensor.overlap_sms, "", "SMs of that reduce-scatter", between(0.0, 1000.0));
    add("keeps_gathered_inputs", &tensor.keeps_gathered_inputs, "",
        "inputs of column-parallel GEMMs stay gathered until backward");
    add("gathers_each_product", &tensor.gathers_each_product, "",
        "q, k and v, gate and up gather their input each for themselves, and reduce its gradient");
    add("concatenates_sequences", &tensor.concatenates_sequences, "",
        "collectives concatenate along the first dimension: parts of several sequences are copied");
    add("async_by_pattern", &tensor.async_by_pattern, "",
        "async tensor parallelism is a pattern of one GEMM that a compiler finds");
    add("sums_gradients_at_once", &tensor.sums_gradients_at_once, "",
        "gradients of one input are added up by one kernel");
  });
  fields.group("context", [&] {
    add("ring_by_all_gather", &parallel.context.ring_by_all_gather, "",
        "the ring goes round by one all-gather and sums in fp32");
    add("blocking_ring", &parallel.context.blocking_ring, "",
        "nothing runs beside its collectives");
  });
  fields.group("loss", [&] {
    add("keeps_output", &parallel.loss.keeps_output, "",
        "logits in the compute type stay until backward has ended");
    add("separate_parts_bytes", &parallel.loss.separate_parts_bytes, "byte",
        "a logit at the fullest where kernels of their own put parts of the vocabulary together "
        "and logits are fp32; 0: in place",
        kBytesPerElement);
    add("row_per_block", &parallel.loss.row_per_block, "",
        "a thread block of the loss has the logits of one token");
  });
}

void describe_gradients(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("accumulates_in_product", &parallel.accumulates_in_product, "",
      "weight gradients are added up by the product's own kernel");
  add("separate_bias_gradients", &parallel.separate_bias_gradients, "",
      "biases' gradients are summed by kernels of their own");
  add("gradient_bytes", &parallel.gradient_bytes, "byte",
      "of an accumulated gradient, per parameter", between(2.0, 4.0));
  add("keeps_small_gradients", &parallel.keeps_small_gradients, "",
      "gradients of the weights' type stay beside accumulated ones in fp32");
  add("overlap_grad_reduce", &parallel.overlap_grad_reduce, "",
      "gradients are reduced while backward runs, where the plan does not say");
  add("overlap_param_gather", &parallel.overlap_param_gather, "",
      "parameters are gathered while forward runs, where the plan does not say");
  add("bucket_parameters", &parallel.bucket_parameters, "",
      "parameters of a gradient bucket, at least", between(1.0, 1e15));
  add("bucket_parameters_per_rank", &parallel.bucket_parameters_per_rank, "",
      "the same per data-parallel rank", between(0.0, 1e15));
  add("reshards_after_forward", &parallel.reshards_after_forward, "",
      "sharded parameters are released after forward, without a pipeline");

  fields.group("gradients", [&] {
    GradientSoftware& gradients = parallel.gradients;
    add("whole_bytes", &gradients.whole_bytes, "byte",
        "a parameter where whole gradients are reduced though each rank updates a part; 0: parts "
        "are",
        between(0.0, 8.0));
    add("whole_copy_bytes", &gradients.whole_copy_bytes, "byte",
        "a parameter, moved into buckets of that type and back", between(0.0, 1e3));
    add("flattened_bytes", &gradients.flattened_bytes, "byte",
        "an owned parameter whose 16-bit gradients are flattened and cast for the update",
        between(0.0, 100.0));
    add("bucket_bytes", &gradients.bucket_bytes, "byte", "the bucket that those come from",
        between(0.0, 1e12));
    add("registered_buffer_sms", &gradients.registered_buffer_sms, "",
        "SMs of gathers and reductions with registered buffers, by the framework's own FSDP in one "
        "NVLink domain; 0: no such buffers",
        between(0.0, 1000.0));
  });
}

void describe_pipeline(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("blocking_transfers", &parallel.blocking_transfers, "",
      "stages without virtual ones wait for each exchange");
  add("transfer_sync_s", &parallel.transfer_sync_s, "s", "device idle after each blocking exchange",
      kUpToAnHour);
  add("message_bytes_per_s", &parallel.message_bytes_per_s, "byte/s",
      "most that a message between GPUs of a node moves; 0: what their links give",
      between(0.0, 1e13));
  add("overlapped_interleaving", &parallel.overlapped_interleaving, "",
      "with virtual stages only who needs a transfer waits for it");

  fields.group("stages", [&] {
    StageSoftware& stages = parallel.stages;
    add("modules_before", &stages.modules_before, "",
        "modules before the layers that count as layers where stages get equally many",
        between(0.0, 16.0));
    add("modules_after", &stages.modules_after, "", "the same after them", between(0.0, 16.0));
    add("by_cost", &stages.by_cost, "",
        "stages get layers by their parameters, the head's among them");
  });
}

void describe_host(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("blocking_launches", &parallel.blocking_launches, "",
      "the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1)");
  add("host_sync_s", &parallel.host_sync_s, "s",
      "from a result that the host waits for to the next kernel", kUpToAnHour);
  add("graph_launch_s", &parallel.graph_launch_s, "s", "host time of a layer that a graph holds",
      kUpToAnHour);
  add("cuda_graphs", &parallel.cuda_graphs, "", "what graphs hold, where the plan does not say")
      .one_of(known_words<CudaGraphs>());
  add("step_jitter_per_doubling", &parallel.step_jitter_per_doubling, "",
      "share of a step's time per doubling of nodes beyond one", between(0.0, 1.0));
}

void describe_memory(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("fragmentation", &parallel.fragmentation, "",
      "reserved beyond allocated, per byte that comes and goes", between(0.0, 10.0));
  add("communicator_bytes", &parallel.communicator_bytes, "byte",
      "device memory of each group's communicator", between(0.0, 1e11));
}

void describe_moe(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("dispatcher", &parallel.dispatcher, "",
      "tokens go to their experts, where the plan does not say")
      .one_of(known_words<Dispatcher>());
  add("dispatch_sms", &parallel.dispatch_sms, "", "SMs of kernels that send tokens to experts",
      between(1.0, 1000.0));
  add("permute_efficiency", &parallel.permute_efficiency, "",
      "of streaming bandwidth, rows gathered by token", between(0.01, 1.0));
  add("module_forward_s", &parallel.module_forward_s, "s",
      "host time of a module or autograd function around its launches, forward", kUpToAnHour);
  add("module_backward_s", &parallel.module_backward_s, "s", "the same, backward", kUpToAnHour);
  add("expert_launch_s", &parallel.expert_launch_s, "s",
      "host time added to each kernel of one expert's rows", kUpToAnHour);
  add("grouped_in_one_kernel", &parallel.grouped_in_one_kernel, "",
      "products of all experts are one kernel");
  add("overlaps_shared_experts", &parallel.overlaps_shared_experts, "",
      "shared experts run beside the exchange of tokens");

  fields.group("moe", [&] {
    MoeSoftware& moe = parallel.moe;
    add("gemm_streams", &moe.gemm_streams, "",
        "streams over which experts' GEMMs run that are launched one by one", between(1.0, 1024.0));
    add("fused_grouped_gemms", &moe.fused_grouped_gemms, "",
        "grouped GEMMs apply activation and MXFP8's casts, where graphs hold the whole step");
    add("exchanges_weights", &moe.exchanges_weights, "",
        "weights of rows go to the experts by an exchange of their own, in fp32");
    add("hybridep_link_share", &moe.hybridep_link_share, "",
        "of the links' bandwidth, by HybridEP's copies", between(0.01, 2.0));
    const auto gini = [&](std::string_view name, double& value, std::string_view meaning) {
      add(name, &value, "", meaning, between(0.0, 0.99));
    };
    gini("multi_head_load_gini", moe.multi_head_load_gini,
         "Gini coefficient of the experts' rows, models with multi-head attention");
    gini("grouped_query_load_gini", moe.grouped_query_load_gini,
         "the same with grouped-query attention");
    gini("latent_load_gini", moe.latent_load_gini, "the same with latent attention");
    gini("bias_balanced_load_gini", moe.bias_balanced_load_gini,
         "the same of routers that a bias balances, whatever the attention");
    gini("no_aux_loss_gini", moe.no_aux_loss_gini,
         "the same of routers trained without an auxiliary loss");
    add("unfused_biases", &moe.unfused_biases, "",
        "experts with biases run activation and biases by kernels of their own");
    const auto traffic = [&](std::string_view name, double& bytes, std::string_view meaning) {
      add(name, &bytes, "byte", meaning, between(0.0, 1e4));
    };
    traffic("unfused_activation_forward_bytes", moe.unfused_activation_forward_bytes,
            "those move per element of the activation, forward");
    traffic("unfused_activation_backward_bytes", moe.unfused_activation_backward_bytes,
            "the same backward");
    traffic("unfused_bias_forward_bytes", moe.unfused_bias_forward_bytes,
            "those move per element that FC2 puts out, forward");
    traffic("unfused_bias_backward_bytes", moe.unfused_bias_backward_bytes, "the same backward");
    add("unfused_forward_kernels", &moe.unfused_forward_kernels, "", "launches, forward",
        kLaunches);
    add("unfused_backward_kernels", &moe.unfused_backward_kernels, "", "launches, backward",
        kLaunches);
  });
}

void describe_precision(FieldList& fields, ParallelSoftware& parallel) {
  const Adder add{fields};
  add("cast_efficiency", &parallel.cast_efficiency, "",
      "of streaming bandwidth, casts to fewer bits", between(0.01, 1.0));

  fields.group("fp8", [&] {
    Fp8Software& fp8 = parallel.fp8;
    const auto efficiency = [&](std::string_view name, double& value, std::string_view meaning) {
      add(name, &value, "", meaning, between(0.0, 1.0));
    };
    add("reads_both_layouts", &fp8.reads_both_layouts, "",
        "operands get no transposed copy where the GPU multiplies any layout");
    add("casts_for_each_product", &fp8.casts_for_each_product, "",
        "each product casts both operands, from what is kept in 16 bits");
    add("norms_cast", &fp8.norms_cast, "", "norms write fp8 where its scale is known before");
    add("rowwise_gemm_share", &fp8.rowwise_gemm_share, "",
        "what GEMMs with a scale a row reach of those with one a tensor", between(0.1, 2.0));
    efficiency("cast_transpose_efficiency", fp8.cast_transpose_efficiency,
               "of streaming bandwidth, cast and transpose in one pass; 0: cast_efficiency");
    efficiency("mxfp8_cast_efficiency", fp8.mxfp8_cast_efficiency,
               "of streaming bandwidth, casts to MXFP8; 0: cast_efficiency");
    add("eager_cast_bytes", &fp8.eager_cast_bytes, "byte",
        "an element, casts with one scale a tensor that no compiler fuses; 0: fused",
        between(0.0, 1e3));
    add("eager_cast_kernels", &fp8.eager_cast_kernels, "", "their launches", between(1.0, 100.0));
  });
}

void describe_choices(FieldList& fields, SoftwareChoices& choices) {
  const Adder add{fields};
  fields.group("choices", [&] {
    add("tp_overlap", &choices.tp_overlap, "", "overlaps that the framework has")
        .one_of(known_words<TensorOverlap>());
    add("dispatcher", &choices.dispatcher, "", "dispatchers that it has")
        .one_of(known_words<Dispatcher>());
    add("pp_schedule", &choices.pp_schedule, "", "schedules that it has beside the usual ones")
        .one_of(known_words<PipelineKind>());
    add("ep_overlap", &choices.ep_overlap, "",
        "all-to-alls of experts hide behind another micro-batch where asked to");
  });
}

}  // namespace

void describe(FieldList& fields, ParallelSoftware& parallel) {
  describe_scope(fields, parallel);
  describe_attention(fields, parallel);
  describe_tensor(fields, parallel);
  describe_gradients(fields, parallel);
  describe_pipeline(fields, parallel);
  describe_host(fields, parallel);
  describe_memory(fields, parallel);
  describe_moe(fields, parallel);
  describe_precision(fields, parallel);
  fields.group("userbuffers", [&] {
    const Adder add{fields};
    Userbuffers& userbuffers = parallel.userbuffers;
    const NumberRange<double> sms = between(0.0, 1000.0);
    add("gather_sms", &userbuffers.gather_sms, "",
        "SMs of a whole gather beside a GEMM of backward; 0: as many as NCCL takes", sms);
    add("qkv_reduce_sms", &userbuffers.qkv_reduce_sms, "",
        "SMs of a whole reduction beside the weight gradient of QKV; 0: as many as NCCL takes",
        sms);
    add("fc1_reduce_sms", &userbuffers.fc1_reduce_sms, "", "the same beside that of FC1", sms);
    add("deferred_head_gradients", &userbuffers.deferred_head_gradients, "",
        "micro-batches whose weight gradient of the head waits for the pipeline's flush",
        between(0.0, 1e6));
  });
  describe_choices(fields, parallel.choices);
}

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::size_t digits_from(std::string_view text, std::size_t begin) {
  std::size_t end = begin;
  while (end < text.size() && is_digit(text[end])) ++end;
  return end - begin;
}

int number(std::string_view digits) {
  int value = 0;
  for (const char c : digits) value = 10 * value + (c - '0');
  return value;
}

/// The number of two digits behind a divider, or none.
std::vector<int> part_behind(std::string_view text, std::size_t at) {
  if (at >= text.size() || (text[at] != '-' && text[at] != '.')) return {};
  if (digits_from(text, at + 1) != 2) return {};
  return {number(text.substr(at + 1, 2))};
}

}  // namespace

std::vector<int> release_date(std::string_view release) {
  for (std::size_t i = 0; i < release.size(); ++i) {
    if (!is_digit(release[i])) continue;
    const std::size_t digits = digits_from(release, i);
    const int first = digits <= 4 ? number(release.substr(i, digits)) : 0;
    std::vector<int> next = part_behind(release, i + digits);
    const bool short_year = digits == 2 && first >= 20 && first < 70 && !next.empty();
    if ((digits == 4 && first >= 2000 && first < 2100) || short_year) {
      std::vector<int> date{short_year ? 2000 + first : first};
      for (std::size_t at = i + digits; !next.empty() && date.size() < 3;
           next = part_behind(release, at)) {
        date.push_back(next.front());
        at += 3;
      }
      return date;
    }
    i += digits - 1;
    // A version of another kind ("2.11"): what stands behind its dots is no year.
    while (i + 2 < release.size() && release[i + 1] == '.' && is_digit(release[i + 2])) {
      i += 1 + digits_from(release, i + 2);
    }
  }
  return {};
}

}  // namespace shardwright::profiles
