// SPDX-License-Identifier: Apache-2.0
// This project's token files: like llm.c's, with 64-bit counts, the vocabulary they were made for,
// and checksums.
//
// Little-endian, without padding:
//   0   8  "SHWTOKEN"
//   8   4  version, 1 or 2
//   12  4  bytes of a token: 1, 2 or 4
//   16  8  vocabulary: every token is below it
//   24  8  tokens
//   32  8  tokens of a block, the last one may have fewer
//   40  4  CRC-32 of the block table
//   44  4  CRC-32 of bytes 0 to 43
// and where the version is 2, which knows documents and what of them is trained:
//   48  8  documents
//   56  4  1 where there is a mask, else 0
//   60  4  CRC-32 of both tables
//   64  32 SHA-256 of the tokenizer's files, zero where they are not known
//   96  32 of its chat template
//   128 32 of the converter's options
//   160 4  CRC-32 of bytes 48 to 159, then 4 of zero
//   168    8 for each document: TokenSource::documents
//          the mask: TokenSource::mask
// Then block table: the CRC-32 of each block's bytes; then the tokens.
// A block is checked when it is read for the first time, so that a corpus of any size opens at
// once. shardwright.tokens (cli/python/shardwright/tokens.py) makes such files of texts and chats.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "exec/train/data/token_source.h"

namespace shardwright::exec {

/// Throws Error when the file is no such file, is damaged, or has a larger vocabulary than the
/// model.
std::unique_ptr<TokenSource> open_token_file(const std::filesystem::path& path, std::int64_t vocab);

bool is_token_file(std::span<const std::byte> bytes);

/// Writes tokens, each in [0, vocab), in as few bytes each as the vocabulary allows: version 1.
void write_token_file(const std::filesystem::path& path, std::span<const std::int32_t> tokens,
                      std::int64_t vocab, std::int64_t block_tokens = std::int64_t{1} << 18);

}  // namespace shardwright::exec
