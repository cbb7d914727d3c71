// SPDX-License-Identifier: Apache-2.0
// The files beside a model's weights that text is made of tokens with: a trained model is of little
// use without them.
#pragma once

#include <filesystem>
#include <vector>

namespace shardwright::cli {

/// Copies the tokenizer's and generation's files from the first of `folders` that has any into the
/// model folder; files that are there already stay. Returns how many. Throws Error.
int copy_tokenizer(const std::vector<std::filesystem::path>& folders,
                   const std::filesystem::path& model);

}  // namespace shardwright::cli
