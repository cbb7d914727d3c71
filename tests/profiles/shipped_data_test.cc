// SPDX-License-Identifier: Apache-2.0
// Guards the shipped data files: all load, every value says where it comes from, names agree, and
// what is written reads back the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "profiles/cluster_file.h"
#include "profiles/data_file.h"
#include "profiles/fields.h"
#include "profiles/gpu_file.h"
#include "profiles/ledger/ledger.h"
#include "profiles/profile.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/support/not_empty.h"

namespace shardwright::profiles {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

template <typename Thing>
void expect_sourced(const std::string& name, Thing thing, const Origins& origins) {
  FieldList fields;
  describe(fields, thing);
  for (const Field& field : fields.fields()) {
    const auto origin = origins.find(field.path);
    if (origin == origins.end()) {
      EXPECT_EQ(field.need, Need::kOptional) << name << ": " << field.path << " has no source";
      continue;
    }
    EXPECT_FALSE(origin->second.source.empty()) << name << ": " << field.path;
    EXPECT_FALSE(origin->second.source.starts_with("given in")) << name << ": " << field.path;
    EXPECT_FALSE(origin->second.confidence.empty()) << name << ": " << field.path;
  }
}

template <typename File, typename Parse>
void expect_round_trip(const File& file, Parse parse) {
  const std::string text = to_json(file);
  const File again = parse(text, "again.json");
  EXPECT_EQ(to_json(again), text);
}

TEST(ShippedData, GpusLoadWithSources) {
  for (const std::string& name : shipped_names(DataKind::kGpu)) {
    const GpuFile file = load_gpu(name);
    EXPECT_EQ(file.gpu.id, name);
    EXPECT_FALSE(file.description.empty()) << name;
    expect_sourced(name, file.gpu, file.origins);
    expect_round_trip(file, parse_gpu);
    EXPECT_LT(file.gpu.runtime_bytes, file.gpu.memory_bytes / 4) << name;
    EXPECT_EQ(load_cluster(file.usual_cluster).gpu.gpu.id, name)
        << name << " names a usual cluster of another GPU";
    EXPECT_NO_THROW(load_profile(file.usual_cluster, "native")) << name << " has no costs";
    for (const std::string& other : file.other_clusters) {
      EXPECT_EQ(load_cluster(other).gpu.gpu.id, name) << other;
    }
  }
}

TEST(ShippedData, ClustersLoadWithSources) {
  for (const std::string& name : shipped_names(DataKind::kCluster)) {
    const ClusterFile file = load_cluster(name);
    EXPECT_EQ(file.cluster.id, name);
    EXPECT_FALSE(file.description.empty()) << name;
    expect_sourced(name, file.cluster, file.origins);
    expect_round_trip(file, parse_cluster);
    if (file.cluster.usd_per_gpu_hour > 0) {
      const Origin& price = file.origins.at("usd_per_gpu_hour");
      EXPECT_FALSE(price.source.empty()) << name;
      EXPECT_FALSE(price.date.empty()) << name << ": a price without a date";
    }
  }
}

TEST(ShippedData, StacksLoadWithSources) {
  const std::vector<std::string> names = shipped_names(DataKind::kStack);
  EXPECT_THAT(names,
              IsSupersetOf({"native", "hf-eager", "torch-eager", "torch-compile", "mpt-eager"}));
  for (const std::string& name : names) {
    const StackFile file = load_stack(name);
    EXPECT_EQ(file.stack.id, name);
    EXPECT_FALSE(file.stack.description.empty()) << name;
    expect_sourced(name, file.stack, file.origins);
    expect_round_trip(file, parse_stack);
  }
}

// Presets that one source alone supports serve the rows of the ledger and nobody else.
TEST(ShippedData, PublishedPresetsAreNoStacksToChoose) {
  const std::vector<std::string> names = shipped_names(DataKind::kStack);
  for (const std::filesystem::path& preset : not_empty(published_presets())) {
    const StackFile file = load_stack(preset.string());
    EXPECT_EQ(file.stack.id, preset.stem());
    EXPECT_FALSE(file.software.empty()) << preset;
    EXPECT_EQ(std::count(names.begin(), names.end(), file.stack.id), 0) << preset;
    expect_sourced(file.stack.id, file.stack, file.origins);
    const std::string software = file.software.substr(0, file.software.find('|'));
    EXPECT_EQ(load_preset(file.stack.family, software).stack.id, file.stack.id);
    EXPECT_EQ(load_stack(file.stack.id).stack.id, file.stack.id);  // as plans of old call it
  }
  try {
    load_stack("megatron-core-nemo-26.0");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("megatron-core-nemo-24"));
    EXPECT_THAT(error.what(), Not(HasSubstr("26.06")));
  }
}

// A release is offered where published runs of two sources say how good it is.
TEST(ShippedData, ReleasesToChooseHaveTwoSources) {
  std::map<std::pair<std::string, std::string>, std::set<std::string>> rows;
  for (const char* table : {"ledger.csv", "parallel.csv"}) {
    for (const LedgerRow& row : load_ledger(shipped_ledger().parent_path() / table)) {
      if (row.plan.stack.empty()) continue;
      rows[{row.plan.stack, row.software}].insert(row.source);
    }
  }
  std::map<std::string, std::set<std::string>> sources;
  for (const auto& [software, of] : not_empty(rows)) {
    sources[load_preset(software.first, software.second).stack.id].insert(of.begin(), of.end());
  }
  for (const std::string& name : shipped_names(DataKind::kStack)) {
    if (!load_stack(name).software.empty()) {
      EXPECT_GE(sources[name].size(), 2U) << name;
    }
  }
  for (const std::filesystem::path& preset : published_presets()) {
    EXPECT_LE(sources[preset.stem()].size(), 1U) << preset;
  }
}

TEST(ShippedData, GpusOfThePublishedRunsAreThere) {
  EXPECT_THAT(shipped_names(DataKind::kGpu),
              IsSupersetOf({"a100-40g", "a100-80g", "h100-80g", "h100-96g-500w", "h200", "b200",
                            "rtx-pro-6000", "rtx-4090", "rtx-5060ti"}));
  for (const char* name : {"rtx-4090", "rtx-5060ti", "rtx-pro-6000", "rtx-5090"}) {
    EXPECT_FALSE(make_cluster(name, 4, std::nullopt).cluster.nvlink) << name;
  }
}

TEST(ShippedData, MemoryIsWhatCudaReportsNotWhatIsSold) {
  EXPECT_LT(load_gpu("a100-80g").gpu.memory_bytes, 79.4 * kGiB);
  EXPECT_LT(load_gpu("b200").gpu.memory_bytes, 178.4 * kGiB);
  EXPECT_DOUBLE_EQ(load_gpu("b200").gpu.hbm_bytes_per_s, 7.7e12);  // sold as 8
}

// The saved tensors of an eager Llama layer with FlashAttention-2, counted by hand from the
// module's source: tokens x (20 hidden + 4 kv width + 8 ffn + 4 heads) bytes. Inputs of matrix
// products are 4 x 2 hidden (q/k/v, o, gate/up, and q itself) and the product 2 ffn; k, v 4 kv;
// gate, up 4 ffn.
TEST(ShippedData, HfEagerKeepsWhatTheModulesKeep) {
  const Stack stack = load_stack("hf-eager").stack;
  const auto sum = [](const std::vector<double>& list) {
    double total = 0;
    for (const double bytes : list) total += bytes;
    return total;
  };
  EXPECT_EQ(2 * sum(stack.norm.saved_bytes) + 4 * 2.0, 20);
  EXPECT_EQ(sum(stack.gated_activation.saved_bytes) + 2 + 4, 8.0);
  // Head: three fp32 tensors of the logits' shape at the end of forward.
  EXPECT_EQ(sum(stack.loss.saved_bytes) + stack.loss.forward_temporary_bytes, 12);
}

}  // namespace
}  // namespace shardwright::profiles
