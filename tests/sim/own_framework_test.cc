// SPDX-License-Identifier: Apache-2.0
// A framework is what its file says: one of a user's own, with its own id and no base, sets each
// capability of its `parallel` group, and each tells in some prediction.

#include <functional>
#include <nlohmann/json.hpp>

#include "profiles/cluster_file.h"
#include "profiles/fields.h"
#include "profiles/ledger/ledger.h"
#include "tests/sim/model_parallel_plans.h"

namespace shardwright::sim {
namespace {

using nlohmann::ordered_json;

struct Given {
  std::string path, value;  // JSON
};

/// All values of the shipped framework under another id, with these instead.
profiles::StackFile own_framework(const std::string& like, const std::vector<Given>& settings) {
  ordered_json file = ordered_json::parse(to_json(profiles::load_stack(like)));
  file["id"] = "mine";
  file.erase("family");
  file.erase("software");
  for (const Given& setting : settings) {
    std::string pointer = "/parallel/" + setting.path;
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    file[ordered_json::json_pointer(pointer)] = ordered_json::parse(setting.value);
  }
  profiles::StackFile parsed = profiles::parse_stack(file.dump(), "mine.json");
  EXPECT_EQ(parsed.stack.family, "mine");
  return parsed;
}

struct CapabilityCase {
  std::string path, value;
  std::function<void(Plan&)> change = [](Plan&) {};
  std::string like = "megatron-core", cluster = "dgx-h100", model = "";
  std::vector<Given> before = {};  // that it needs to tell
};

Plan plan_with(const std::function<void(Plan&)>& change) {
  Plan plan = plan_of(64, 4, 4, 8);
  plan.stack = "mine";
  change(plan);
  return plan;
}

/// Time and memory to the last digit.
std::string time_and_memory(const CapabilityCase& c, const std::vector<Given>& settings) {
  const Model model = c.model.empty() ? llama_70b() : shipped(c.model);
  const auto profile =
      profiles::make_profile(profiles::load_cluster(c.cluster), own_framework(c.like, settings));
  Plan plan = plan_with(c.change);
  if (!profile.stack.optimizer.bucketed) plan.strategy = Strategy::kDdp;
  const Prediction p = predict(model, profile, plan);
  return fmt::format("{} s, {} bytes", p.time.iteration_s, p.memory.peak_allocated_bytes);
}

void with_userbuffers(Plan& plan) {
  plan.parallel.tp_overlap = TensorOverlap::kUserbuffers;
}
void with_context(Plan& plan) {
  plan.parallel.pp = 1;
  plan.parallel.cp = 4;
}
std::function<void(Plan&)> fp8(Fp8Recipe recipe) {
  return [recipe](Plan& plan) {
    plan.numerics.precision = Precision::kFp8;
    plan.numerics.fp8_recipe = recipe;
  };
}
std::function<void(Plan&)> experts(Dispatcher dispatcher, bool mxfp8 = false) {
  return [=](Plan& plan) {
    plan.gpus = 16;
    plan.seq_len = 4096;
    plan.parallel = {};
    plan.parallel.ep = 8;
    plan.parallel.dispatcher = dispatcher;
    if (!mxfp8) return;
    plan.parallel.cuda_graphs = CudaGraphs::kStep;
    fp8(Fp8Recipe::kMxfp8)(plan);
  };
}

std::vector<CapabilityCase> capability_cases() {
  const auto sinks = experts(Dispatcher::kAllToAll);
  const auto sinks_fp8 = experts(Dispatcher::kAllToAll, true);
  const auto four_ranks = [=](Plan& plan) {
    sinks(plan);
    plan.parallel.ep = 4;
  };
  const auto unaided = [=](Plan& plan) {
    sinks(plan);
    plan.parallel.expert_load = ExpertLoad{Routing::kUnaided, {}, {}};
  };
  const auto reduce_bf16 = [](Plan& plan) { plan.reduce_dtype = DType::kBf16; };
  const auto async = [](Plan& plan) { plan.parallel.tp_overlap = TensorOverlap::kAsync; };
  const auto two_sequences = [](Plan& plan) { plan.micro_batch = 2; };
  const auto own_fsdp = [](Plan& plan) {
    plan.gpus = 8;
    plan.parallel = {};
    plan.strategy = Strategy::kMegatronFsdp;
  };
  const std::string m = "megatron-core", h = "dgx-h100", b = "dgx-b200", gb = "gb200-nvl72";
  const std::string torch = "torch-compile", oss = "gpt-oss-120b", mixtral = "mixtral-8x7b";
  return {
      {"tensor.overlap_splits", "1", with_userbuffers},
      {"tensor.overlap_sms", "64", with_userbuffers},
      {"userbuffers.gather_sms", "64", with_userbuffers},
      {"userbuffers.qkv_reduce_sms", "2", with_userbuffers},
      {"userbuffers.fc1_reduce_sms", "64", with_userbuffers},
      {"userbuffers.deferred_head_gradients", "0", with_userbuffers},
      {"tensor.keeps_gathered_inputs", "true"},
      {"tensor.gathers_each_product", "true", two_sequences, torch},
      {"tensor.concatenates_sequences", "true", two_sequences},
      {"tensor.async_by_pattern", "true", async},
      {"tensor.sums_gradients_at_once", "false", two_sequences, torch},
      {"context.ring_by_all_gather", "true", with_context},
      {"context.blocking_ring", "false", with_context, torch},
      {"loss.separate_parts_bytes", "400"},
      {"loss.keeps_output", "true", own_fsdp},
      {"loss.row_per_block", "true", two_sequences, m, b},
      {"stages.modules_before", "2"},
      {"stages.modules_after", "3"},
      {"stages.by_cost", "true", [](Plan& plan) { plan.parallel.pp = 8; }},
      {"gradients.whole_bytes", "4"},
      {"gradients.whole_copy_bytes", "24", {}, m, h, "", {{"gradients.whole_bytes", "4"}}},
      {"gradients.flattened_bytes", "8", reduce_bf16},
      {"gradients.bucket_bytes", "1e9", reduce_bf16},
      {"gradients.registered_buffer_sms", "60", own_fsdp},
      {"sinks.attention_share", "0.2", sinks, m, h, oss},
      {"sinks.fp8_backward_share", "0.5", sinks_fp8, m, gb, oss},
      {"sinks.fp8_input_bytes", "8", sinks_fp8, m, gb, oss},
      {"scaled_rope.unfused", "false", sinks, m, h, oss},
      {"scaled_rope.forward_bytes", "100", sinks, m, h, oss},
      {"scaled_rope.backward_bytes", "100", sinks, m, h, oss},
      {"scaled_rope.forward_kernels", "40", sinks, m, h, oss},
      {"scaled_rope.backward_kernels", "40", sinks, m, h, oss},
      {"fp8.reads_both_layouts", "false", fp8(Fp8Recipe::kTensorwise), m, gb},
      {"fp8.casts_for_each_product", "true", fp8(Fp8Recipe::kTensorwise)},
      {"fp8.norms_cast", "false", fp8(Fp8Recipe::kDelayed)},
      {"fp8.rowwise_gemm_share", "0.5", fp8(Fp8Recipe::kRowwise)},
      {"fp8.cast_transpose_efficiency", "0.2", fp8(Fp8Recipe::kTensorwise)},
      {"fp8.mxfp8_cast_efficiency", "0.2", fp8(Fp8Recipe::kMxfp8), m, gb},
      {"fp8.eager_cast_bytes", "33", fp8(Fp8Recipe::kTensorwise)},
      {"fp8.eager_cast_kernels", "60", fp8(Fp8Recipe::kTensorwise), "torch-eager"},
      {"moe.gemm_streams", "1", sinks, m, h, "qwen3-30b-a3b"},
      {"moe.fused_grouped_gemms", "true", sinks_fp8, m, gb, "qwen3-30b-a3b"},
      {"moe.exchanges_weights", "false", sinks, m, h, mixtral},
      {"moe.hybridep_link_share", "0.5", experts(Dispatcher::kHybridEp), m, h, mixtral},
      {"moe.multi_head_load_gini", "0.3", four_ranks, m, h, "qwen1.5-moe-a2.7b"},
      {"moe.grouped_query_load_gini", "0.3", sinks, m, h, mixtral},
      {"moe.latent_load_gini", "0.3", sinks, m, h, "deepseek-v2-lite"},
      {"moe.bias_balanced_load_gini", "0.3", sinks, m, h, "deepseek-v3"},
      {"moe.no_aux_loss_gini", "0.3", unaided, m, h, mixtral},
      {"moe.unfused_biases", "false", sinks, m, h, oss},
      {"moe.unfused_activation_forward_bytes", "900", sinks, m, h, oss},
      {"moe.unfused_activation_backward_bytes", "900", sinks, m, h, oss},
      {"moe.unfused_bias_forward_bytes", "900", sinks, m, h, oss},
      {"moe.unfused_bias_backward_bytes", "900", sinks, m, h, oss},
      {"moe.unfused_forward_kernels", "90", sinks, m, h, oss},
      {"moe.unfused_backward_kernels", "90", sinks, m, h, oss},
  };
}

TEST(OwnFramework, EachCapabilityTells) {
  for (CapabilityCase c : capability_cases()) {
    if (!c.change) c.change = [](Plan&) {};
    std::vector<Given> settings = c.before;
    const std::string before = time_and_memory(c, settings);
    settings.push_back({c.path, c.value});
    EXPECT_NE(time_and_memory(c, settings), before) << c.path;
  }
}

// What has no case above is older than the groups, or says only what tuning may try.
TEST(OwnFramework, NoCapabilityIsLeftOut) {
  std::set<std::string> covered;
  for (const CapabilityCase& c : capability_cases()) covered.insert(c.path);
  ParallelSoftware parallel;
  profiles::FieldList fields;
  describe(fields, parallel);
  for (const std::string& path : fields.paths()) {
    if (path.find('.') == path.npos || path.starts_with("choices.")) continue;
    EXPECT_TRUE(covered.contains(path)) << path;
  }
}

TEST(OwnFramework, SaysWhatTuningMayTry) {
  const Stack stack = own_framework("native", {{"choices.tp_overlap", R"(["none", "async"])"},
                                               {"choices.dispatcher", R"(["deepep"])"},
                                               {"choices.pp_schedule", R"(["zbv"])"}})
                          .stack;
  const profiles::SoftwareSettings settings = profiles::software_settings(stack);
  EXPECT_EQ(settings.tensor_overlaps, (std::vector{TensorOverlap::kNone, TensorOverlap::kAsync}));
  EXPECT_EQ(settings.dispatchers, std::vector{Dispatcher::kDeepEp});
  EXPECT_EQ(settings.schedules, std::vector{PipelineKind::kZbv});
}

TEST(OwnFramework, UserbuffersAreNotUsualInNvfp4) {
  const Stack stack = profiles::load_stack("megatron-core-nemo").stack;
  Model dense;  // without experts
  EXPECT_EQ(profiles::usual_overlap(stack, dense, Precision::kFp8), TensorOverlap::kUserbuffers);
  EXPECT_EQ(profiles::usual_overlap(stack, dense, Precision::kNvfp4), TensorOverlap::kNone);
}

}  // namespace
}  // namespace shardwright::sim
