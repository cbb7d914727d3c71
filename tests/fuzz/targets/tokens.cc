// SPDX-License-Identifier: Apache-2.0
// Training data of any format but JSON lines: text, llm.c's, this project's token files, these with
// the checksums as they are and made right.
#include <algorithm>
#include <cstring>

#include "exec/train/data/dataset.h"
#include "exec/train/data/mapped_file.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

constexpr std::int64_t kVocab = 300;
constexpr std::size_t kHeaderBytes = 48;

template <class T>
T at(const std::string& bytes, std::size_t place) {
  T value;
  std::memcpy(&value, bytes.data() + place, sizeof value);
  return value;
}
void put(std::string& bytes, std::size_t place, std::uint32_t value) {
  std::memcpy(bytes.data() + place, &value, sizeof value);
}

/// Checksums of the blocks, of their table and of the header (exec/train/data/token_file.h).
std::string with_checksums(std::string file) {
  const auto width = at<std::uint32_t>(file, 12);
  const auto tokens = at<std::uint64_t>(file, 24);
  const auto block = at<std::uint64_t>(file, 32);
  if (block > 0 && tokens < file.size() && width <= 4) {
    const std::uint64_t blocks = (tokens + block - 1) / block;
    const std::uint64_t data = kHeaderBytes + 4 * blocks;
    if (data + tokens * width <= file.size()) {
      for (std::uint64_t i = 0; i < blocks; ++i) {
        const std::uint64_t count = std::min(block, tokens - i * block);
        put(file, kHeaderBytes + 4 * i,
            exec::crc32(std::string_view(file).substr(data + i * block * width, count * width)));
      }
      put(file, 40, exec::crc32(std::string_view(file).substr(kHeaderBytes, 4 * blocks)));
    }
  }
  put(file, 44, exec::crc32(std::string_view(file).substr(0, 44)));
  return file;
}

void read(const exec::Dataset& data) {
  constexpr std::int64_t kMostSequences = 16;
  exec::Batch batch;
  for (std::int64_t i = 0; i < std::min(data.sequences(), kMostSequences); ++i) {
    data.append(i, batch);
  }
  for (const std::int32_t token : batch.tokens) {
    SHARDWRIGHT_CHECK(token >= 0 && token < kVocab, "token {}", token);
  }
  SHARDWRIGHT_CHECK(!data.describe().empty(), "no description");
  data.fingerprint();
}

void open(const std::string& file) {
  exec::DataOptions options;
  options.train = scratch_file("data.bin", file).string();
  options.seq_len = 8;
  options.vocab = kVocab;
  const exec::Data data = exec::open_data(options);
  read(*data.train);
  if (data.eval != nullptr) read(*data.eval);
}

void fuzz_tokens(std::string_view input) {
  const std::string file(input);
  if (file.starts_with("SHWTOKEN") && file.size() >= kHeaderBytes) {
    try {
      open(file);
    } catch (const Error&) {
      // Mostly: a checksum is wrong.
    }
    return open(with_checksums(file));
  }
  open(file);
}

SHARDWRIGHT_FUZZ_TARGET(tokens, fuzz_tokens, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
