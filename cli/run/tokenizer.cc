// SPDX-License-Identifier: Apache-2.0
#include "cli/run/tokenizer.h"

#include <array>
#include <system_error>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/read_file.h"

namespace shardwright::cli {
namespace {

namespace fs = std::filesystem;

/// What AutoTokenizer and GenerationConfig of Transformers look for.
constexpr std::array kFiles = {"tokenizer.json",     "tokenizer_config.json",
                               "tokenizer.model",    "special_tokens_map.json",
                               "added_tokens.json",  "vocab.json",
                               "vocab.txt",          "merges.txt",
                               "spiece.model",       "chat_template.jinja",
                               "chat_template.json", "generation_config.json"};
constexpr std::size_t kMostTokenizerBytes = std::size_t{256} << 20;

}  // namespace

int copy_tokenizer(const std::vector<fs::path>& folders, const fs::path& model) {
  int copied = 0;
  for (const fs::path& folder : folders) {
    for (const char* name : kFiles) {
      std::error_code ignored;
      if (!fs::is_regular_file(folder / name, ignored) || fs::exists(model / name, ignored)) {
        continue;
      }
      write_file_atomically(model / name, read_file(folder / name, kMostTokenizerBytes),
                            OutputPlace::kInFolder);
      ++copied;
    }
    if (copied > 0) break;
  }
  return copied;
}

}  // namespace shardwright::cli
