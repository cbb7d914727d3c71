// SPDX-License-Identifier: Apache-2.0
// Pairs of prompt and response for fine-tuning.
#include "exec/train/data/sft_dataset.h"
#include "sim/core/base/check.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void fuzz_sft(std::string_view input) {
  constexpr std::int64_t kVocab = 300, kSeqLen = 8, kMostSequences = 64;
  const auto corpus =
      std::make_shared<const exec::SftCorpus>(exec::SftCorpus::parse(input, "sft.jsonl", kVocab));
  const auto data = exec::make_sft_dataset(corpus, kSeqLen, 0, corpus->documents().size());
  exec::Batch batch;
  std::size_t sequences = 0;
  for (; sequences < static_cast<std::size_t>(std::min(data->sequences(), kMostSequences));
       ++sequences) {
    data->append(static_cast<std::int64_t>(sequences), batch);
  }
  SHARDWRIGHT_CHECK(batch.tokens.size() == sequences * kSeqLen, "{} tokens", batch.tokens.size());
  SHARDWRIGHT_CHECK(batch.targets.size() == batch.tokens.size(), "{} targets",
                    batch.targets.size());
  for (const std::int32_t token : batch.tokens) {
    SHARDWRIGHT_CHECK(token >= 0 && token < kVocab, "token {}", token);
  }
}

SHARDWRIGHT_FUZZ_TARGET(sft, fuzz_sft, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
