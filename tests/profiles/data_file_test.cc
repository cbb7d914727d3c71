// SPDX-License-Identifier: Apache-2.0
// Guards the sentences that a wrong data file gives, and that no file, however broken, does worse.
#include "profiles/data_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>

#include "profiles/cluster_file.h"
#include "profiles/gpu_file.h"
#include "profiles/stack_file.h"
#include "sim/core/base/error.h"
#include "tests/profiles/kineto_text.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace shardwright::profiles {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal_of;

std::string gpu_error(const std::string& text) {
  return refusal_of([&] { parse_gpu(text, "mine.json"); });
}
std::string cluster_error(const std::string& text) {
  return refusal_of([&] { parse_cluster(text, "mine.json"); });
}

TEST(DataFile, IsReadPacked) {
  const testing::TempFolder folder;
  const auto file = write_gzip(folder.path() / "mine.json.gz",
                               R"({"schema": "shardwright.gpu/1.0", "base": "h100-80g"})");
  EXPECT_EQ(open_data_file(DataKind::kGpu, file.string()).id, "mine");
  EXPECT_EQ(load_gpu(file.string()).gpu.peak_bf16_flops, load_gpu("h100-80g").gpu.peak_bf16_flops);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 12);
  EXPECT_THAT(refusal_of([&] { load_gpu(file.string()); }), HasSubstr("is damaged or ends early"));
}

TEST(DataFile, UnknownNamesListTheNearest) {
  EXPECT_THAT(refusal_of([] { load_cluster("dgx-h10"); }),
              AllOf(HasSubstr("cluster 'dgx-h10'"), HasSubstr("dgx-h100")));
  EXPECT_THAT(refusal_of([] { load_gpu("a100"); }),
              AllOf(HasSubstr("a100-80g"), HasSubstr("a100-40g"), HasSubstr("inspect gpus")));
  EXPECT_THAT(refusal_of([] { load_stack("../stacks/hf-eager"); }),
              HasSubstr("../stacks/hf-eager"));
  EXPECT_THAT(refusal_of([] { load_gpu("nowhere/gpu.json"); }), HasSubstr("nowhere/gpu.json"));
  EXPECT_THAT(refusal_of([] { load_gpu(""); }), HasSubstr("gpu ''"));
}

TEST(DataFile, PlainValuesAndABaseAreEnoughForAUser) {
  const GpuFile file = parse_gpu(
      R"({"base": "h100-80g", "hbm_bytes_per_s": 3e12, "_why": "measured here",
          "memory_bytes": {"value": 8e10, "unit": "byte"}, "l2_bytes": null})",
      "mine.json");
  EXPECT_EQ(file.gpu.id, "mine");
  EXPECT_EQ(file.cost_as, "h100-80g");
  EXPECT_DOUBLE_EQ(file.gpu.hbm_bytes_per_s, 3e12);
  EXPECT_EQ(file.gpu.memory_bytes, 80000000000);
  EXPECT_EQ(file.gpu.sm_count, 132);
  EXPECT_DOUBLE_EQ(file.gpu.l2_bytes, 5e7);  // null is absent
  EXPECT_EQ(file.origins.at("hbm_bytes_per_s").source, "given in mine.json");
}

TEST(DataFile, ErrorsNameFilePathValueAndWhatIsAccepted) {
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "sm_count": 1.5})"),
              AllOf(HasSubstr("mine.json"), HasSubstr("sm_count"), HasSubstr("1.5"),
                    HasSubstr("an integer")));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "hbm_bytes_per_s": {"value": -1}})"),
              AllOf(HasSubstr("hbm_bytes_per_s.value"), HasSubstr("from 1000000")));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "hbm_bytes_per_s": {"value": 2, "unit": "TB/s"}})"),
              AllOf(HasSubstr("\"TB/s\""), HasSubstr("\"byte/s\"")));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "hbm": 1})"),
              AllOf(HasSubstr("hbm is not a known key"), HasSubstr("hbm_bytes_per_s")));
  EXPECT_THAT(gpu_error(R"({"hbm_bytes_per_s": 1e12})"),
              AllOf(HasSubstr("missing"), HasSubstr("base")));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "sm_count": {"value": 1, "trust": 1}})"),
              HasSubstr("sm_count.trust"));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "sm_count": {"value": 1, "confidence": "sure"}})"),
              HasSubstr("inferred"));
  EXPECT_THAT(gpu_error(R"({"schema": "shardwright.stack/1.0"})"),
              HasSubstr("shardwright.gpu/1.0"));
  EXPECT_THAT(gpu_error("[]"), HasSubstr("an object"));
  EXPECT_THAT(gpu_error(R"({"base": "h100-80g", "sm_count": {"source": "memory"}})"),
              HasSubstr("sm_count.value is missing"));
  EXPECT_THAT(refusal_of([] {
                parse_stack(R"({"base": "native", "norm": {"forward_byte": 1}})", "mine.json");
              }),
              AllOf(HasSubstr("norm.forward_byte"), HasSubstr("forward_bytes")));
  EXPECT_THAT(refusal_of([] { parse_stack(R"({"base": "native", "norm": 3})", "mine.json"); }),
              HasSubstr("norm is 3"));
}

TEST(DataFile, NamesAreShownNotObeyed) {
  for (const char* id : {"a\\nb", "a\\u001b[31m", "a\\u202eb", "a\\u200bb"}) {
    const std::string text = fmt::format(R"({{"base": "dgx-h100", "id": "{}"}})", id);
    EXPECT_THAT(refusal_of([&] { parse_cluster(text, "mine.json"); }),
                AllOf(HasSubstr("mine.json"), HasSubstr("id"), HasSubstr("control characters")));
  }
}

// A data sheet says TFLOP/s, GB/s and GB; a link is sold in Gb/s.
TEST(DataFile, UnitsOfADataSheetAreErrors) {
  const auto gpu_with = [](const std::string& value) {
    return gpu_error(R"({"base": "h100-80g", )" + value + "}");
  };
  EXPECT_THAT(gpu_with(R"("peak_bf16_flops": 989)"), HasSubstr("peak_bf16_flops is 989"));
  EXPECT_THAT(gpu_with(R"("peak_fp32_flops": 66.9)"), HasSubstr("peak_fp32_flops is 66.9"));
  EXPECT_THAT(gpu_with(R"("hbm_bytes_per_s": 3350)"), HasSubstr("hbm_bytes_per_s is 3350"));
  EXPECT_THAT(gpu_with(R"("memory_bytes": 80)"), HasSubstr("memory_bytes is 80"));
  EXPECT_THAT(cluster_error(R"({"base": "dgx-h100", "nic_bytes_per_s": 400})"),
              AllOf(HasSubstr("nic_bytes_per_s is 400"), HasSubstr("bytes per second")));
  EXPECT_THAT(cluster_error(R"({"base": "dgx-h100", "intra_link_bytes_per_s": 450})"),
              HasSubstr("intra_link_bytes_per_s is 450"));
}

TEST(DataFile, ContradictionsInAClusterAreErrors) {
  EXPECT_THAT(cluster_error(R"({"base": "dgx-h100", "nic_bytes_per_s": 0})"),
              AllOf(HasSubstr("nic_bytes_per_s"), HasSubstr("8 NICs")));
  EXPECT_THAT(cluster_error(R"({"base": "dgx-h100", "intra_link_bytes_per_s": 0})"),
              HasSubstr("intra_link_bytes_per_s"));
  EXPECT_THAT(cluster_error(R"({"base": "dgx-h100", "gpu": "h1000"})"), HasSubstr("gpu 'h1000'"));
  EXPECT_EQ(cluster_error(R"({"base": "dgx-h100", "nics_per_node": 0, "nic_bytes_per_s": 0})"),
            "accepted");
}

TEST(DataFile, AClusterFileFindsItsGpuBesideIt) {
  const std::filesystem::path folder = shardwright::testing::temp_folder() / "shardwright_own";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "card.json") << R"({"base": "h100-80g", "sm_count": 100})";
  std::ofstream(folder / "mine.json") << R"({"base": "dgx-h100", "gpu": "./card.json"})";
  const ClusterFile file = load_cluster((folder / "mine.json").string());
  EXPECT_EQ(file.cluster.id, "mine");
  EXPECT_EQ(file.cluster.gpu.id, "card");
  EXPECT_EQ(file.cluster.gpu.sm_count, 100);
  EXPECT_EQ(file.cluster.nics_per_node, 8);
  std::filesystem::remove_all(folder);
}

TEST(DataFile, AFileThatBuildsOnItselfIsAnError) {
  const std::filesystem::path path = shardwright::testing::temp_folder() / "shardwright_self.json";
  std::ofstream(path) << R"({"base": "./shardwright_self.json"})";
  EXPECT_THAT(refusal_of([&] { load_stack(path.string()); }), HasSubstr("builds on itself"));
  std::filesystem::remove(path);
}

TEST(MakeCluster, TakesTheNetworkFromTheRow) {
  const Cluster usual = make_cluster("a100-80g", 8, std::nullopt).cluster;
  EXPECT_DOUBLE_EQ(usual.node_net_bytes_per_s(), 200e9);
  const Cluster half = make_cluster("a100-80g", 8, 800).cluster;
  EXPECT_EQ(half.nics_per_node, 4);
  EXPECT_DOUBLE_EQ(half.node_net_bytes_per_s(), 100e9);
  EXPECT_EQ(half.id, "8xa100-80g-800g");
  EXPECT_EQ(make_cluster("h100-80g", 8, 800).cluster.nics_per_node, 2);
  EXPECT_DOUBLE_EQ(make_cluster("h100-80g", 8, std::nullopt).cluster.node_net_bytes_per_s(), 400e9);
  EXPECT_DOUBLE_EQ(make_cluster("h100-80g", 8, 100).cluster.node_net_bytes_per_s(), 12.5e9);
  EXPECT_EQ(make_cluster("h100-80g", 8, 0).cluster.nics_per_node, 0);
  EXPECT_DOUBLE_EQ(make_cluster("rtx-4090", 2, 100).cluster.node_net_bytes_per_s(), 12.5e9);
  EXPECT_THAT(refusal_of([] { make_cluster("h100-80g", 8, -1); }), HasSubstr("-1"));
  EXPECT_THAT(refusal_of([] { make_cluster("h100-80g", 0, 100); }), HasSubstr("gpus_per_node"));
}

std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// One random change: a byte replaced, a span dropped, doubled, or swapped for a word that JSON
/// readers stumble over.
std::string mutate(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return random() % std::max<std::size_t>(n, 1); };
  static const char* const kWords[] = {"null", "-1",  "1e999", "{}",    "[]", "\"\"", "1.5",
                                       "true", "nan", "1e30",  "\"x\"", "{",  "}",    "\\u0000"};
  const std::size_t at = below(text.size());
  const std::size_t length = below(std::min<std::size_t>(40, text.size() - at));
  switch (below(5)) {
    case 0:
      text[at] = static_cast<char>(random() & 0xff);
      break;
    case 1:
      text.erase(at, length);
      break;
    case 2:
      text.insert(at, text.substr(at, length));
      break;
    case 3:
      text.resize(at);
      break;
    default: {
      // Replace a whole value, which keeps the text JSON and reaches the typed reads.
      const std::size_t colon = text.find(": ", at);
      if (colon == text.npos) break;
      const std::size_t end = text.find_first_of(",}\n", colon + 2);
      text.replace(colon + 2, std::min(end, text.size()) - colon - 2,
                   kWords[below(std::size(kWords))]);
    }
  }
  return text;
}

TEST(DataFile, BrokenFilesOnlyEverThrowError) {
  std::mt19937 random(20261121);
  const std::filesystem::path data = data_dir();
  const std::string gpu = text_of(data / "gpus/h100-80g.json");
  const std::string cluster = text_of(data / "clusters/dgx-h100.json");
  const std::string stack = text_of(data / "stacks/hf-eager.json");
  int rejected = 0;
  int accepted = 0;
  const auto attempt = [&](auto parse, std::string text) {
    for (int changes = static_cast<int>(random() % 3) + 1; changes > 0; --changes) {
      text = mutate(std::move(text), random);
    }
    try {
      parse(text, "broken.json");
      ++accepted;
    } catch (const Error& error) {
      ++rejected;
      EXPECT_THAT(std::string(error.what()), Not(HasSubstr("\n")));
    }
  };
  for (int i = 0; i < 1500; ++i) {
    attempt(parse_gpu, gpu);
    attempt(parse_cluster, cluster);
    if (i % 5 == 0) attempt(parse_stack, stack);
  }
  EXPECT_GT(rejected, 1000);
  EXPECT_GT(accepted, 50);
}

}  // namespace

// A file that stays is read once; one that changes is read again; a reader that fails leaves
// nothing behind.

namespace {

namespace fs = std::filesystem;

int reads = 0;

std::string read_word(const std::string& file) {
  ++reads;
  std::ifstream stream(file);
  std::string word;
  if (!(stream >> word)) throw std::runtime_error("no word");
  return word;
}

class KeptFile : public ::testing::Test {
 protected:
  void SetUp() override { reads = 0; }
  void write(const std::string& text, int seconds_ago) const {
    std::ofstream(file) << text;
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::seconds(seconds_ago));
  }

  const fs::path file = shardwright::testing::temp_folder() / "word";
  KeptFiles<std::string> kept{&read_word};
};

TEST_F(KeptFile, IsReadOnceWhileItStays) {
  write("one", 10);
  EXPECT_EQ(*kept.get(file), "one");
  EXPECT_EQ(kept.get(file), kept.get(file));
  EXPECT_EQ(reads, 1);
}

TEST_F(KeptFile, IsReadAgainWhenItsTimeOrSizeChanges) {
  write("one", 10);
  const auto first = kept.get(file);
  write("two", 5);
  EXPECT_EQ(*kept.get(file), "two");
  write("three", 5);
  EXPECT_EQ(*kept.get(file), "three");
  EXPECT_EQ(*first, "one");
  EXPECT_EQ(reads, 3);
}

TEST_F(KeptFile, FailsAsItsReaderDoes) {
  write("", 10);
  EXPECT_THROW(kept.get(file), std::runtime_error);
  EXPECT_THROW(kept.get(file), std::runtime_error);
  write("now", 10);
  EXPECT_EQ(*kept.get(file), "now");
  fs::remove(file);
  EXPECT_THROW(kept.get(file), std::runtime_error);
}

class DataDir : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("SHARDWRIGHT_DATA"); }
  void TearDown() override { unsetenv("SHARDWRIGHT_DATA"); }
};

TEST_F(DataDir, IsTheSourceTreeInABuildTree) {
  EXPECT_TRUE(std::filesystem::is_directory(data_dir())) << data_dir();
  EXPECT_EQ(data_dir().filename(), "data");
}

TEST_F(DataDir, TheEnvironmentComesFirst) {
  const std::string folder = shardwright::testing::temp_folder().string();
  setenv("SHARDWRIGHT_DATA", folder.c_str(), 1);
  EXPECT_EQ(data_dir(), folder);
}

TEST_F(DataDir, AnEmptyVariableCountsAsUnset) {
  setenv("SHARDWRIGHT_DATA", "", 1);
  EXPECT_EQ(data_dir().filename(), "data");
}

TEST_F(DataDir, AMissingFolderIsNamed) {
  setenv("SHARDWRIGHT_DATA", "/no/such/folder", 1);
  try {
    data_dir();
    FAIL() << "accepted a folder that is not there";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string{error.what()}.find("/no/such/folder"), std::string::npos);
  }
}

// With figures of whoever makes a folder beside it, a copied program would answer wrongly.
TEST_F(DataDir, FiguresOfSomebodyElseAreNotTakenUnasked) {
  namespace fs = std::filesystem;
  if (::geteuid() != 0) GTEST_SKIP() << "only root makes folders of others";
  const fs::path mine = shardwright::testing::temp_folder() / "mine", theirs = mine / "theirs";
  fs::create_directories(theirs);
  ASSERT_EQ(::chown(theirs.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(is_trusted_folder(mine));
  EXPECT_FALSE(is_trusted_folder(theirs));
  EXPECT_FALSE(is_trusted_folder(mine / "absent"));
}

}  // namespace

}  // namespace shardwright::profiles
