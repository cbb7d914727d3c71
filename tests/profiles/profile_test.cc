// Guards the way from shipped files and --set to the values that the simulator reads.
#include "profiles/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/core/error.h"

namespace shardwright::profiles {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::vector<std::string>& overrides) {
  try {
    load_profile("dgx-h100", "hf-eager", overrides);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
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
       "gpu.memory_bytes=8e10"});
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

TEST(Profile, EveryFieldCanBeSetToItsOwnValue) {
  Profile profile = load_profile("dgx-h100", "native");
  Profile changed = profile;
  for (const Field& field : fields_of(profile).fields()) {
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
  EXPECT_THAT(error_of({"=1"}), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(error_of({"cluster.nic_efficiency"}), HasSubstr("KEY=VALUE"));
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

TEST(Profile, AClusterFileMaySetValuesOfTheProfile) {
  const ClusterFile cluster = parse_cluster(
      R"({"base": "dgx-h100", "set": {"stack.host.step_s": 0.5,
          "gpu.runtime_bytes": {"value": 7, "unit": "byte", "source": "measured"}}})",
      "mine.json");
  const Profile profile = make_profile(cluster, load_stack("native"));
  EXPECT_DOUBLE_EQ(profile.stack.host.step_s, 0.5);
  EXPECT_EQ(profile.cluster.gpu.runtime_bytes, 7);
  EXPECT_EQ(profile.origins.at("gpu.runtime_bytes").source, "measured");
  EXPECT_DOUBLE_EQ(
      make_profile(cluster, load_stack("native"), {"stack.host.step_s=0.75"}).stack.host.step_s,
      0.75);
}

}  // namespace
}  // namespace shardwright::profiles
