// SPDX-License-Identifier: Apache-2.0
// Guards the way from shipped files and --set to the values that the simulator reads.
#include "profiles/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/support/not_empty.h"
#include "tests/support/refusal.h"

namespace shardwright::profiles {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::refusal_of;

std::string error_of(const std::vector<std::string>& overrides,
                     ExitCode code = ExitCode::kBadInput) {
  return refusal_of([&] { load_profile("dgx-h100", "hf-eager", overrides); }, code);
}

TEST(Profile, LoadsClusterGpuAndStack) {
  const Profile profile = load_profile("a100-80g-4xhdr200", "hf-eager");
  EXPECT_EQ(profile.cluster.gpu.id, "a100-80g");
  EXPECT_EQ(profile.cluster.gpus_per_node, 8);
  EXPECT_DOUBLE_EQ(profile.cluster.node_net_bytes_per_s(), 100e9);
  EXPECT_DOUBLE_EQ(profile.cluster.gpu.peak_bf16_flops, 312e12);
  EXPECT_DOUBLE_EQ(profile.stack.norm.forward_bytes, 36);
}

TEST(Profile, SetOverridesEveryKindOfValue) {
  const Profile profile = load_profile(
      "dgx-h100", "hf-eager",
      {"cluster.nic_efficiency=0.8", "gpu.hbm_bytes_per_s=2e12", "cluster.nics_per_node=4",
       "stack.host.step_s=0.25", "stack.norm.forward_kernels=3", "stack.norm.saved_bytes=2,1.5",
       "stack.fused_qkv=true", "stack.memory=static", "stack.attention_kernel=fa3",
       "gpu.memory_bytes=8e10", "cost.gemm.e=0.9", "cost.attention.fa2.forward_flops=3e14",
       "cost.collectives.channels_one_node=8", "cost.collectives.nccl.ring_base_s.ll128=1e-5"});
  EXPECT_DOUBLE_EQ(profile.cost.gemm.values.e, 0.9);
  EXPECT_DOUBLE_EQ(profile.cost.attention.at("fa2").values.forward_flops, 3e14);
  EXPECT_EQ(profile.cost.collectives.values.channels_one_node, 8);
  EXPECT_DOUBLE_EQ(profile.cost.collectives.values.nccl.ring_base_s[1], 1e-5);
  EXPECT_DOUBLE_EQ(profile.cost.rates.values.hbm_bytes_per_s, 2e12);  // follows the GPU
  EXPECT_DOUBLE_EQ(profile.cluster.nic_efficiency, 0.8);
  EXPECT_DOUBLE_EQ(profile.cluster.gpu.hbm_bytes_per_s, 2e12);
  EXPECT_EQ(profile.cluster.nics_per_node, 4);
  EXPECT_DOUBLE_EQ(profile.stack.host.step_s, 0.25);
  EXPECT_EQ(profile.stack.norm.forward_kernels, 3);
  EXPECT_THAT(profile.stack.norm.saved_bytes, ::testing::ElementsAre(2, 1.5));
  EXPECT_TRUE(profile.stack.fused_qkv);
  EXPECT_EQ(profile.stack.memory, MemoryManager::kStatic);
  EXPECT_EQ(profile.stack.attention_kernel, "fa3");
  EXPECT_EQ(profile.cluster.gpu.memory_bytes, 80000000000);
  EXPECT_EQ(profile.origins.at("cluster.nic_efficiency").source, "--set");
}

TEST(Profile, WordsOfFrameworksAreThoseThatPlansKnow) {
  const Profile profile = load_profile(
      "dgx-h100", "torch-compile",
      {"stack.parallel.tp_overlap=async", "stack.parallel.choices.tp_overlap=none,userbuffers",
       "stack.parallel.choices.pp_schedule="});
  EXPECT_EQ(profile.stack.parallel.tp_overlap, "async");
  EXPECT_THAT(profile.stack.parallel.choices.tp_overlap,
              ::testing::ElementsAre("none", "userbuffers"));
  EXPECT_THAT(profile.stack.parallel.choices.pp_schedule, ::testing::IsEmpty());
  EXPECT_THAT(error_of({"stack.parallel.tp_overlap=userbuffer"}),
              HasSubstr("expected one of none, userbuffers, async"));
  EXPECT_THAT(error_of({"stack.parallel.choices.dispatcher=deepep,deep"}),
              HasSubstr("expected a list, each element one of allgather, alltoall"));
}

TEST(Profile, EveryFieldCanBeSetToItsOwnValue) {
  Profile profile = load_profile("dgx-h100", "native");
  Profile changed = profile;
  for (const Field& field : not_empty(fields_of(profile).fields())) {
    const std::string text = set_text(field);
    ASSERT_NO_THROW(override_value(changed, field.path + "=" + text)) << field.path << "=" << text;
    const FieldList after = fields_of(changed);
    EXPECT_EQ(json_text(*after.find(field.path)), json_text(field)) << field.path;
  }
}

TEST(Profile, UnknownPathsNameTheNearest) {
  EXPECT_THAT(error_of({"cluster.nic_eficiency=0.8"}),
              AllOf(HasSubstr("--set"), HasSubstr("'cluster.nic_eficiency'"),
                    HasSubstr("cluster.nic_efficiency")));
  EXPECT_THAT(error_of({"step_s=1"}), HasSubstr("stack.host.step_s"));
  for (const char* no_pair : {"=1", "cluster.nic_efficiency"})
    EXPECT_THAT(error_of({no_pair}, ExitCode::kUsage), HasSubstr("KEY=VALUE"));
}

TEST(Profile, ValuesOutOfRangeSayWhatIsAccepted) {
  EXPECT_THAT(error_of({"cluster.nic_efficiency=1.5"}),
              AllOf(HasSubstr("'1.5'"), HasSubstr("at most 1")));
  EXPECT_THAT(error_of({"cluster.nic_efficiency=0"}), HasSubstr("above 0"));
  EXPECT_THAT(error_of({"gpu.sm_count=1.5"}), HasSubstr("an integer"));
  EXPECT_THAT(error_of({"gpu.memory_bytes=1e30"}), HasSubstr("an integer"));
  EXPECT_THAT(error_of({"gpu.hbm_bytes_per_s=fast"}), HasSubstr("byte/s"));
  EXPECT_THAT(error_of({"gpu.hbm_bytes_per_s=nan"}), HasSubstr("a number"));
  EXPECT_THAT(error_of({"stack.fused_qkv=1"}), HasSubstr("true or false"));
  EXPECT_THAT(error_of({"stack.memory=heap"}), HasSubstr("static, caching-allocator"));
  EXPECT_THAT(error_of({"stack.norm.saved_bytes=2,-1"}), HasSubstr("a list"));
  EXPECT_THAT(error_of({"cluster.nic_bytes_per_s=0"}), HasSubstr("nic_bytes_per_s"));
}

TEST(Profile, EveryValueHasAnOrigin) {
  Profile profile = load_profile("dgx-h100", "native");
  for (const Field& field : not_empty(fields_of(profile).fields())) {
    EXPECT_TRUE(profile.origins.contains(field.path)) << field.path;
  }
}

TEST(Profile, EveryShippedClusterRunsEveryShippedStack) {
  const GpuCosts costs = load_gpu_costs();
  for (const std::string& stack : not_empty(shipped_names(DataKind::kStack))) {
    const StackFile stack_file = load_stack(stack);
    for (const std::string& cluster : not_empty(shipped_names(DataKind::kCluster))) {
      const Profile profile = make_profile(load_cluster(cluster), stack_file, costs);
      EXPECT_GT(profile.attention().forward_flops, 0) << cluster << " " << stack;
      const auto own = costs.gpus.find(profile.cluster.gpu.id);
      if (own == costs.gpus.end()) continue;  // those of a similar GPU
      // The cost parameters were made for the rates that the GPU file has.
      const GpuRates& fitted = own->second.rates.values;
      const GpuRates& now = profile.cost.rates.values;
      EXPECT_NEAR(now.peak_flops / fitted.peak_flops, 1, 0.001) << cluster;
      EXPECT_NEAR(now.hbm_bytes_per_s / fitted.hbm_bytes_per_s, 1, 0.03) << cluster;
      EXPECT_EQ(now.sm_count, fitted.sm_count) << cluster;
    }
  }
}

TEST(Profile, AnUnknownAttentionKernelIsAnErrorAndAMissingOneFallsBack) {
  EXPECT_THAT(error_of({"stack.attention_kernel=fa9"}),
              AllOf(HasSubstr("'fa9'"), HasSubstr("fa2")));
  const Profile a100 = load_profile("p4d", "native", {"stack.attention_kernel=fa3"});
  EXPECT_EQ(&a100.attention(), &a100.cost.attention.at("fa2").values);
}

TEST(Profile, ANetworkIsOfAKnownKind) {
  EXPECT_THAT(error_of({"cluster.network=token-ring"}),
              AllOf(HasSubstr("'token-ring'"), HasSubstr("infiniband, roce, efa")));
  EXPECT_EQ(load_profile("p4d", "native").cluster.network, "efa");
  EXPECT_EQ(load_profile("p4d", "native", {"cluster.network=roce"}).cluster.network, "roce");
}

TEST(Profile, AnOwnGpuNeedsAGpuWhoseCostsItTakes) {
  ClusterFile cluster = load_cluster("dgx-h200");
  cluster.gpu.cost_as = "h300";
  EXPECT_THAT(refusal_of([&] { make_profile(cluster, load_stack("native"), load_gpu_costs()); }),
              AllOf(HasSubstr("cost_as"), HasSubstr("h200")));
}

TEST(Profile, WhatAClusterFileSetsIsCheckedLikeTheRest) {
  const auto error = [](const std::string& set) {
    return refusal_of([&] {
      make_profile(parse_cluster(R"({"base": "dgx-h100", "set": )" + set + "}", "mine.json"),
                   load_stack("native"));
    });
  };
  EXPECT_THAT(error(R"({"cost.gem.e": 0.9})"),
              AllOf(HasSubstr("mine.json"), HasSubstr("'cost.gem.e'"), HasSubstr("cost.gemm.e")));
  EXPECT_THAT(error(R"({"cost.gemm.e": 9})"),
              AllOf(HasSubstr("mine.json"), HasSubstr("cost.gemm.e"), HasSubstr("9")));
  EXPECT_THAT(error(R"({"cost.gemm.t0_s": {"value": 2, "unit": "us"}})"), HasSubstr("\"us\""));
  EXPECT_THAT(error("3"), HasSubstr("set is 3"));
}

TEST(Profile, AClusterFileMaySetValuesOfTheProfile) {
  const ClusterFile cluster = parse_cluster(
      R"({"base": "dgx-h100", "set": {"stack.host.step_s": 0.5,
          "gpu.runtime_bytes": {"value": 7, "unit": "byte", "source": "measured"}}})",
      "mine.json");
  const Profile profile = make_profile(cluster, load_stack("native"), load_gpu_costs());
  EXPECT_DOUBLE_EQ(profile.stack.host.step_s, 0.5);
  EXPECT_EQ(profile.cluster.gpu.runtime_bytes, 7);
  EXPECT_EQ(profile.origins.at("gpu.runtime_bytes").source, "measured");
  EXPECT_DOUBLE_EQ(
      make_profile(cluster, load_stack("native"), load_gpu_costs(), {"stack.host.step_s=0.75"})
          .stack.host.step_s,
      0.75);
}

}  // namespace
}  // namespace shardwright::profiles
