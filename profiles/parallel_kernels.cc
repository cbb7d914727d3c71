// SPDX-License-Identifier: Apache-2.0
#include "profiles/parallel_kernels.h"

#include <algorithm>
#include <string_view>

#include "profiles/data_dir.h"
#include "sim/core/json_file.h"

namespace shardwright::profiles {
namespace {

std::vector<std::string> words_in(const JsonReader& entry, std::string_view name) {
  std::vector<std::string> words;
  for (const JsonReader& word : entry.require_array(name)) {
    words.push_back(word.value<std::string>());
  }
  return words;
}

std::vector<std::string> stacks_of(const JsonReader& entry) {
  return words_in(entry, "stacks");
}

ScaledRope scaled_rope_of(const JsonReader& entry) {
  ScaledRope rope;
  rope.stacks = stacks_of(entry);
  const auto count = [&](std::string_view name) {
    return entry.require<double>(name, between(0.0, 1e3));
  };
  rope.kernels.forward_bytes = count("forward_bytes");
  rope.kernels.backward_bytes = count("backward_bytes");
  rope.kernels.forward_kernels = static_cast<int>(count("forward_kernels"));
  rope.kernels.backward_kernels = static_cast<int>(count("backward_kernels"));
  return rope;
}

ParallelKernels load_parallel_kernels() {
  const JsonFile file = JsonFile::load(data_dir() / "parallel_kernels.json");
  const auto value = [&](std::string_view name, NumberRange<double> accepted) {
    return file.root().require_object(name).require<double>("value", accepted);
  };
  ParallelKernels kernels;
  kernels.userbuffer_splits = value("userbuffer_splits", between(1.0, 64.0));
  kernels.userbuffer_sms = static_cast<int>(value("userbuffer_sms", between(0.0, 1000.0)));
  const JsonReader bulk = file.root().require_object("userbuffer_bulk");
  const auto sms = [&](std::string_view name) {
    return static_cast<int>(bulk.require<double>(name, between(1.0, 1000.0)));
  };
  kernels.userbuffer_bulk = {sms("gather_sms"), sms("attention_sum_sms"), sms("mlp_sum_sms")};
  kernels.deferred_head_gradients =
      static_cast<int>(value("deferred_head_gradients", between(0.0, 1e6)));
  kernels.hybrid_link_share = value("hybrid_link_share", between(0.01, 2.0));
  kernels.mxfp8_product_share = value("mxfp8_product_share", between(0.1, 2.0));
  kernels.mxfp8_cast_efficiency = value("mxfp8_cast_efficiency", between(0.1, 1.0));
  kernels.sink_attention_share = value("sink_attention_share", between(0.01, 1.0));
  kernels.slow_sinks = stacks_of(file.root().require_object("sink_attention_share"));
  kernels.fp8_sink_backward_share = value("fp8_sink_backward_share", between(0.01, 1.0));
  kernels.fp8_sinks = stacks_of(file.root().require_object("fp8_sink_backward_share"));
  kernels.fp8_attention_input_bytes = value("fp8_attention_input_bytes", between(0.0, 100.0));
  kernels.fp8_attention_inputs = stacks_of(file.root().require_object("fp8_attention_input_bytes"));
  kernels.fused_loss_sm_bytes_per_s = value("fused_loss_sm_bytes_per_s", between(1e8, 1e12));
  const JsonReader loss = file.root().require_object("fused_loss_sm_bytes_per_s");
  kernels.fused_loss_architecture = loss.require<std::string>("architecture");
  kernels.fused_losses = stacks_of(loss);
  const JsonReader biased = file.root().require_object("unfused_biased_experts");
  const auto bytes = [&](std::string_view name) {
    return biased.require<double>(name, between(0.0, 1e4));
  };
  kernels.unfused_activation_forward_bytes = bytes("activation_forward_bytes");
  kernels.unfused_activation_backward_bytes = bytes("activation_backward_bytes");
  kernels.unfused_bias_forward_bytes = bytes("bias_forward_bytes");
  kernels.unfused_bias_backward_bytes = bytes("bias_backward_bytes");
  kernels.unfused_forward_kernels = static_cast<int>(bytes("forward_kernels"));
  kernels.unfused_backward_kernels = static_cast<int>(bytes("backward_kernels"));
  kernels.unfused_biased_experts = stacks_of(biased);
  kernels.fused_experts = stacks_of(file.root().require_object("fused_experts"));
  kernels.sends_weights = stacks_of(file.root().require_object("sends_weights"));
  kernels.expert_streams = value("expert_streams", between(1.0, 1024.0));
  const JsonReader ends = file.root().require_object("listed_ends");
  kernels.listed_ends.stacks = stacks_of(ends);
  const auto modules = [&](std::string_view name) {
    return static_cast<std::int64_t>(ends.require<double>(name, between(0.0, 16.0)));
  };
  kernels.listed_ends.before = modules("before");
  kernels.listed_ends.after = modules("after");
  const JsonReader whole = file.root().require_object("whole_gradients");
  kernels.whole_gradients.stacks = stacks_of(whole);
  kernels.whole_gradients.bytes = whole.require<double>("bytes", between(1.0, 8.0));
  kernels.whole_gradients.copied_bytes = whole.require<double>("copied_bytes", between(0.0, 1e3));
  const JsonReader copied = file.root().require_object("copied_gradients");
  kernels.copied_gradients = {stacks_of(copied),
                              copied.require<double>("bytes", between(0.0, 100.0)),
                              copied.require<double>("bucket_bytes", between(0.0, 1e12))};
  kernels.stages_by_cost = stacks_of(file.root().require_object("stages_by_cost"));
  kernels.keeps_gathered_inputs = stacks_of(file.root().require_object("keeps_gathered_inputs"));
  kernels.gathered_ring = stacks_of(file.root().require_object("gathered_ring"));
  const JsonReader both_ways = file.root().require_object("both_ways_fp8");
  kernels.both_ways_fp8 = {stacks_of(both_ways), words_in(both_ways, "gpus")};
  const JsonReader registered = file.root().require_object("registered_buffers");
  kernels.registered_buffers = {
      stacks_of(registered), words_in(registered, "strategies"),
      static_cast<int>(registered.require<double>("sms", between(1.0, 1000.0)))};
  const JsonReader transposed = file.root().require_object("cast_transpose");
  kernels.cast_transpose = {stacks_of(transposed),
                            transposed.require<double>("efficiency", between(0.01, 1.0))};
  kernels.waits_for_ring = stacks_of(file.root().require_object("waits_for_ring"));
  kernels.copies_parts_of_sequences =
      stacks_of(file.root().require_object("copies_parts_of_sequences"));
  kernels.matches_async_products = stacks_of(file.root().require_object("matches_async_products"));
  kernels.adds_gradients_at_once = stacks_of(file.root().require_object("adds_gradients_at_once"));
  kernels.rowwise_product_share = value("rowwise_product_share", between(0.1, 2.0));
  const JsonReader parts = file.root().require_object("separate_parts_of_loss");
  kernels.separate_parts_of_loss = stacks_of(parts);
  kernels.separate_loss_bytes = parts.require<double>("bytes", between(0.0, 100.0));
  const JsonReader casts = file.root().require_object("eager_casts");
  kernels.eager_casts = {stacks_of(casts), casts.require<double>("bytes", between(1.0, 1e3)),
                         static_cast<int>(casts.require<double>("kernels", between(1.0, 100.0)))};
  kernels.scaled_rope = scaled_rope_of(file.root().require_object("scaled_rope"));
  for (const JsonReader& entry : file.root().require_array("training_load")) {
    kernels.training_loads[entry.require<std::string>("gpu")] = {
        entry.require<double>("product_share", between(0.1, 2.0)),
        entry.require<double>("stream_share", between(0.1, 2.0))};
  }
  return kernels;
}

}  // namespace

bool among(const std::vector<std::string>& stacks, const Stack& stack) {
  return std::find(stacks.begin(), stacks.end(), stack.family) != stacks.end();
}

bool among_editions(const std::vector<std::string>& stacks, const Stack& stack) {
  return std::find(stacks.begin(), stacks.end(), stack.id) != stacks.end();
}

bool transposes_fp8(const Stack& stack, std::string_view gpu) {
  const BothWaysFp8& both_ways = parallel_kernels().both_ways_fp8;
  return !among(both_ways.stacks, stack) ||
         std::find(both_ways.gpus.begin(), both_ways.gpus.end(), gpu) == both_ways.gpus.end();
}

const ParallelKernels& parallel_kernels() {
  static const ParallelKernels kernels = load_parallel_kernels();
  return kernels;
}

TrainingLoad training_load(std::string_view gpu) {
  const auto& loads = parallel_kernels().training_loads;
  const auto at = loads.find(gpu);
  return at == loads.end() ? TrainingLoad{} : at->second;
}

}  // namespace shardwright::profiles
