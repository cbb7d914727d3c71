// SPDX-License-Identifier: Apache-2.0

#include <sstream>

#include "sim/core/hf/config.h"
#include "tests/core/common.h"
#include "tests/support/files.h"

namespace shardwright {
namespace {

namespace fs = std::filesystem;
using testing::get;

const fs::path kModelFiles =
    fs::path(SHARDWRIGHT_TEST_DATA "/../../profiles/data/models").lexically_normal();

std::string problem_of(const std::string& name_or_path) {
  return refusal_of([&] { load_model(kModelFiles, name_or_path); });
}

class HfConfigFiles : public ::testing::Test {
 protected:
  HfConfigFiles() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~HfConfigFiles() override { fs::remove_all(folder_); }

  fs::path write(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  const fs::path folder_ = shardwright::testing::temp_folder() / "shardwright_hf_config_test";
};

TEST_F(HfConfigFiles, FilesAndFoldersNameTheModel) {
  const std::string text = get(kModelFiles / "qwen3-8b.json");
  const fs::path in_folder = write("my-model/config.json", text);
  const fs::path other = write("Qwen--Qwen3-8B.json", text);
  EXPECT_EQ(load_model(kModelFiles, in_folder.string()).name, "my-model");
  EXPECT_EQ(load_model(kModelFiles, in_folder.parent_path().string()).name, "my-model");
  EXPECT_EQ(load_model(kModelFiles, in_folder.parent_path().string() + "/").name, "my-model");
  EXPECT_EQ(load_model(kModelFiles, other.string()).name, "Qwen--Qwen3-8B");
  EXPECT_EQ(load_model(kModelFiles, other.string()).family, "qwen3");
}

TEST_F(HfConfigFiles, WhatIsNotThereIsSaidInOneSentence) {
  EXPECT_EQ(problem_of(folder_.string()),
            folder_.string() + ": holds no config.json, expected a model folder");
  EXPECT_EQ(problem_of("./absent/config.json"),
            "./absent/config.json: no such file or folder, expected a config.json or a folder that "
            "holds one");
  EXPECT_EQ(problem_of(""),
            "the model is '', expected a built-in name, a config.json or a folder that holds one");
  EXPECT_EQ(
      problem_of("lama-3-70b"),
      "model 'lama-3-70b' is not known; the nearest are llama-3-70b, llama-3.1-70b, "
      "llama-2-70b; `shardwright inspect models` lists all, and the path of a config.json or of "
      "its folder is accepted too");
  EXPECT_THAT(problem_of("meta-llama/Lama-2-7b-hf"), HasSubstr("the nearest are llama-2-7b, "));
  EXPECT_THAT(problem_of(write("broken.json", "{\"model_type\": \"llama\", ").string()),
              HasSubstr("broken.json: line 1, column 25: "));
  EXPECT_THAT(problem_of(write("empty/config.json", "").string()), HasSubstr("line 1, column 1"));
  EXPECT_THAT(problem_of(write("list.json", "[1]").string()),
              HasSubstr("the file is [1], expected an object"));
}

/// Applies one random damage to the text of a config.
std::string damage(std::string text, std::mt19937& random) {
  static const std::vector<std::string> kValues = {
      "0",         "-1",        "1",    "3",     "7.5",        "1e30",  "9223372036854775807",
      "1e-320",    "null",      "true", "false", "\"x\"",      "[]",    "{}",
      "[1,2]",     "{\"a\":1}", "\"\"", "4096",  "2147483648", "1e999", "\"gelu\"",
      "\"llama\"", "\"mpt\""};
  const auto at = [&] { return random() % text.size(); };
  switch (random() % 5) {
    case 0:
      text[at()] = static_cast<char>(random() % 256);
      break;
    case 1:
      text.resize(at());
      break;
    case 2:
      text.erase(at(), 1 + random() % 16);
      break;
    default: {
      // The value of a random key becomes another one.
      const std::size_t colon = text.find("\": ", at());
      if (colon == std::string::npos) break;
      const std::size_t end = text.find_first_of(",\n", colon);
      if (end == std::string::npos) break;
      text.replace(colon + 3, end - colon - 3, kValues[random() % kValues.size()]);
    }
  }
  return text.empty() ? "{" : text;
}

/// Damaged configs end in an Error, or in a model that passes check_model and can be counted.
TEST(HfConfig, SurvivesRandomDamage) {
  const std::vector<std::string> seeds = {
      "llama-3.1-8b", "mistral-7b",  "qwen2.5-7b",  "qwen3-8b",     "phi-3-mini",
      "gemma-7b",     "gemma-2-27b", "gpt2",        "gpt-neox-20b", "mpt-7b",
      "mixtral-8x7b", "deepseek-v3", "gpt-oss-20b", "llama-4-scout"};
  std::mt19937 random(11);
  int accepted = 0;
  int refused = 0;
  for (const std::string& seed : seeds) {
    const std::string good = get(kModelFiles / (seed + ".json"));
    for (int round = 0; round < 1500; ++round) {
      std::string text = damage(good, random);
      if (random() % 4 == 0) text = damage(std::move(text), random);
      try {
        const Model model = parse_hf_config(text, "c.json", "damaged");
        check_model(model);
        EXPECT_GT(count_parameters(model).total(model.layers), 0);
        EXPECT_GT(forward_flops_per_token(model, 4096).total(), 0);
        ++accepted;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kBadInput);
        EXPECT_THAT(error.what(), StartsWith("c.json: "));
        ++refused;
      }
    }
  }
  // Both ends are reached often, so the loop tests readers and not only the parser.
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace shardwright
