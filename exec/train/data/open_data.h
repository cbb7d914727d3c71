// SPDX-License-Identifier: Apache-2.0
// From what a user names to training and evaluation data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "exec/train/data/dataset.h"

namespace shardwright::exec {

enum class DataFormat : std::uint8_t { kAuto, kText, kBin, kTokens, kSft };
/// Throws Error naming the word and what is accepted.
DataFormat data_format_from(std::string_view name);

/// What one word of --data names.
struct DataPart {
  std::string word;                // a file, folder, glob or "synthetic"
  std::vector<std::string> files;  // in order
  double share = 0;                // 0: none is given
};

/// "a.bin=0.7,b/=0.3" in its parts; a file of that whole name is one. Throws Error.
std::vector<DataPart> data_parts(const std::string& text);
/// Whether a tokenizer has to be applied to the file.
bool is_text(const std::string& path, DataFormat format);

struct DataOptions {
  /// "synthetic", or files, folders and globs, WORD[=SHARE] joined by commas.
  std::string train{};
  std::string eval{};                     // a path; empty: the end of the training data is held out
  DataFormat format = DataFormat::kAuto;  // kAuto: by content; *.jsonl is sft, other text text
  bool holds_out = true;                  // when there is no eval path
  double held_out_fraction = 0.05;
  std::int64_t seq_len = 0;
  std::int64_t vocab = 0;
  bool bytes = false;      // texts are asked for as bytes, whatever the vocabulary (require_bytes)
  DocumentEnds ends{};     // of what is no fine-tuning
  bool checks = false;     // every token now, not when it is met
  std::uint64_t seed = 0;  // of synthetic data
};

struct Data {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> eval;     // null: nothing to evaluate on
  std::vector<std::string> files{};  // of the training data
};

/// Throws Error naming the file and what is wrong with it.
Data open_data(const DataOptions& options);

}  // namespace shardwright::exec
