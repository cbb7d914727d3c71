// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model that is trained: texts become its tokens before the run, and its files
// go on with what was trained.
#pragma once

#include <filesystem>
#include <vector>

#include "cli/run/options.h"

namespace shardwright::cli {

/// Folders that may hold the model's tokenizer.
std::vector<std::filesystem::path> model_sources(const RunOptions& options);

/// Replaces texts among the data by token files where the model's tokens are no bytes: rank 0 has
/// them made by what SHARDWRIGHT_PYTHON names, into a cache, and the others wait for that. Without
/// it throws the Error that names the command.
void apply_tokenizer(RunOptions& options, const RunSettings& settings);

/// Copies the tokenizer's and generation's files from the first of `folders` that has any into the
/// model folder; files that are there already stay. Returns how many. Throws Error.
int copy_tokenizer(const std::vector<std::filesystem::path>& folders,
                   const std::filesystem::path& model);

}  // namespace shardwright::cli
