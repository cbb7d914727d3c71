// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention.h"
#include "tests/kernels_cuda/support.h"

namespace shardwright::kernels::cuda {
namespace {

using testing::OnDevice;
using CudaDocumentOffsets = testing::CudaTest;

constexpr std::int64_t kPoison = -7;

struct Told {
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> tokens, elements;  // with strides of 1 and 48
};

/// What the kernel says of sequences that are made of documents of these lengths.
Told tell(const std::vector<std::vector<std::int32_t>>& sequences, std::int64_t most) {
  std::vector<std::int32_t> first_key;
  std::int64_t seq = 0;
  for (const auto& sequence : sequences) {
    std::int32_t place = 0;
    for (const std::int32_t length : sequence) {
      first_key.insert(first_key.end(), static_cast<std::size_t>(length), place);
      place += length;
    }
    seq = place;
  }
  const auto room = static_cast<std::size_t>(most);
  const OnDevice<std::int32_t> keys(first_key);
  const OnDevice<std::int32_t> lengths(std::vector<std::int32_t>(room, -7));
  const OnDevice<std::int64_t> tokens(std::vector<std::int64_t>(room + 1, kPoison)),
      elements(std::vector<std::int64_t>(room + 1, kPoison));
  DocumentOffsets out{.most = most, .lengths = lengths.data()};
  out.offsets = {tokens.data(), nullptr, elements.data(), nullptr};
  out.strides = {1, 5, 48, 0};
  document_offsets(nullptr, keys.data(), std::ssize(first_key), seq, out);
  return {lengths.get(), tokens.get(), elements.get()};
}

/// The same by going through the documents.
Told expected(const std::vector<std::vector<std::int32_t>>& sequences, std::int64_t most) {
  Told told;
  std::int64_t at = 0;
  for (const auto& sequence : sequences) {
    for (const std::int32_t length : sequence) {
      if (std::ssize(told.tokens) <= most) told.tokens.push_back(at);
      if (std::ssize(told.lengths) < most) told.lengths.push_back(length);
      at += length;
    }
  }
  told.lengths.resize(static_cast<std::size_t>(most), 0);
  told.tokens.resize(static_cast<std::size_t>(most) + 1, at);
  for (const std::int64_t token : told.tokens) told.elements.push_back(48 * token);
  return told;
}

void expect_told(const std::vector<std::vector<std::int32_t>>& sequences, std::int64_t most) {
  const Told told = tell(sequences, most), right = expected(sequences, most);
  EXPECT_EQ(told.lengths, right.lengths);
  EXPECT_EQ(told.tokens, right.tokens);
  EXPECT_EQ(told.elements, right.elements);
}

TEST_F(CudaDocumentOffsets, AreThoseOfThePackedDocuments) {
  expect_told({{5, 1, 2}, {8}, {1, 7}}, 12);
  expect_told({{1, 1, 1, 1}}, 4);
  expect_told({{16}}, 1);
}

// Each thread has several tokens; documents begin anywhere and go on over many threads.
TEST_F(CudaDocumentOffsets, OfLongSequencesReachOverThreads) {
  const RandomStream stream{.seed = 3};
  std::vector<std::vector<std::int32_t>> sequences(2);
  std::uint64_t drawn = 0;
  for (auto& sequence : sequences) {
    std::int32_t left = 3000;
    while (left > 0) {
      const auto length = static_cast<std::int32_t>(1 + stream.below(drawn++, 700));
      sequence.push_back(std::min(length, left));
      left -= sequence.back();
    }
  }
  expect_told(sequences, 64);
  expect_told({{2999, 1}, {1, 2999}}, 8);
}

TEST_F(CudaDocumentOffsets, WriteNothingBeyondTheRoom) {
  expect_told({{2, 2, 2, 2, 2, 2}}, 3);
}

}  // namespace
}  // namespace shardwright::kernels::cuda
