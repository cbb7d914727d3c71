// SPDX-License-Identifier: Apache-2.0
// What tests of `shardwright run` share.
#pragma once

#include <unistd.h>

#include <string_view>

#include "tests/cli/program.h"

namespace shardwright::cli::testing {

/// A folder with a tiny model and a text, and runs of the program on them.
class RunFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("shardwright-run-") + test->name() + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    put_model(2, 2, 1);
    std::string text;
    for (int i = 0; i < 3000; ++i) text += fmt::format("{} ", i * 7919 % 1000);
    put("text.txt", text);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path put(const std::string& name, std::string_view bytes) const {
    std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    return path;
  }
  void put_model(int layers, int heads, int kv_heads, bool tied = false) const {
    put("model.json", fmt::format(R"({{"model_type": "llama", "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": {}, "num_attention_heads": {},
      "num_key_value_heads": {}, "vocab_size": 256, "max_position_embeddings": 64,
      "rms_norm_eps": 1e-5, "tie_word_embeddings": {}, "architectures": ["LlamaForCausalLM"]}})",
                                  layers, heads, kv_heads, tied));
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  /// A small run into folder_/out; pairs of `more` replace or add flags.
  Words small(const std::string& out, const Words& more = {}) const {
    Words words = joined({SHARDWRIGHT_BINARY, "run", "--device", "host", "--ranks", "2"},
                         {"--model", at("model.json"), "--data", at("text.txt")},
                         {"--steps", "8", "--seq-len", "32", "--micro-batch", "2", "--lr", "1e-2"},
                         {"--threads", "1", "--out", at(out)});
    for (std::size_t i = 0; i < more.size();) {
      const auto known = std::find(words.begin(), words.end(), more[i]);
      const bool has_value = i + 1 < more.size() && !more[i + 1].starts_with("--");
      if (known != words.end() && has_value) {
        *(known + 1) = more[i + 1];
      } else {
        words.push_back(more[i]);
        if (has_value) words.push_back(more[i + 1]);
      }
      i += has_value ? 2 : 1;
    }
    return words;
  }
  static ProgramResult run(const Words& words, const Words& environment = {}) {
    return run_program(words, environment);
  }
  /// The one sentence of a small run that is refused.
  std::string refusal(const Words& more, int code) const {
    const ProgramResult result = run(small("out", more));
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    return result.err;
  }
  std::string model_of(const std::string& out) const {
    return get(folder_ / out / "model" / "model.safetensors");
  }

  std::filesystem::path folder_;
};

}  // namespace shardwright::cli::testing
