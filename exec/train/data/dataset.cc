// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "exec/train/data/checksum.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

class ClmDataset final : public Dataset {
 public:
  ClmDataset(std::shared_ptr<const TokenSource> source, std::int64_t seq_len, std::int64_t first,
             std::int64_t count, DocumentEnds ends)
      : source_(std::move(source)),
        seq_len_(seq_len),
        ends_(ends),
        first_(first),
        sequences_((count - 1) / seq_len) {
    if (count <= seq_len) {
      throw Error(
          fmt::format("{}: {} tokens are too few, expected at least {}, a sequence and its "
                      "last target",
                      source_->describe(), count, seq_len + 1));
    }
    if (ends_.apart && source_->documents().empty() && ends_.token < 0) {
      throw Error(
          fmt::format("{}: nothing says where its documents end, expected a token file "
                      "that knows, or an eos_token_id in the model's config.json",
                      source_->describe()));
    }
  }

  std::int64_t sequences() const override { return sequences_; }

  void append(std::int64_t sequence, Batch& batch) const override {
    SHARDWRIGHT_CHECK(sequence >= 0 && sequence < sequences_, "sequence {} of {}", sequence,
                      sequences_);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(seq_len_) + 1);
    source_->read(first_ + sequence * seq_len_, tokens);
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
    batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
    const std::size_t begin = batch.positions.size();
    batch.positions.resize(begin + static_cast<std::size_t>(seq_len_));
    std::iota(batch.positions.begin() + static_cast<std::ptrdiff_t>(begin), batch.positions.end(),
              0);
    batch.first_keys.resize(batch.positions.size(), 0);
    if (ends_.apart) part(first_ + sequence * seq_len_, begin, batch);
  }

  bool packs_documents() const override { return ends_.apart; }

  std::string describe() const override {
    return fmt::format("{} sequences of {} tokens from {}{}", sequences_, seq_len_,
                       source_->describe(), ends_.apart ? ", documents apart" : "");
  }

  std::uint32_t fingerprint() const override {
    const std::int64_t parts[] = {seq_len_, first_, sequences_, ends_.token};
    const auto said = std::as_bytes(std::span(parts));
    return crc32(said.first((ends_.apart ? 4 : 3) * sizeof parts[0]), source_->fingerprint());
  }

 private:
  /// Of the sequence that begins at `token` and in the batch at `begin`.
  void part(std::int64_t token, std::size_t begin, Batch& batch) const {
    const std::span<const std::uint64_t> ends = source_->documents();
    const auto place = [](std::uint64_t end) { return end & ~kGoesOn; };
    std::int32_t start = 0;
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(seq_len_); ++i) {
      const std::size_t at = begin + static_cast<std::size_t>(i);
      batch.positions[at] = i - start;
      batch.first_keys[at] = start;
      const auto next = static_cast<std::uint64_t>(token + i + 1);
      if (ends.empty() ? batch.tokens[at] != ends_.token
                       : !std::ranges::binary_search(ends, next, {}, place)) {
        continue;
      }
      batch.targets[at] = kIgnoreTarget;
      start = i + 1;
    }
  }

  std::shared_ptr<const TokenSource> source_;
  std::int64_t seq_len_;
  DocumentEnds ends_;
  std::int64_t first_;
  std::int64_t sequences_;
};

}  // namespace

std::unique_ptr<Dataset> make_clm_dataset(std::shared_ptr<const TokenSource> source,
                                          std::int64_t seq_len, std::int64_t first,
                                          std::int64_t count, DocumentEnds ends) {
  return std::make_unique<ClmDataset>(std::move(source), seq_len, first, count, ends);
}

void append_padding(std::int64_t seq_len, Batch& batch) {
  const auto count = static_cast<std::size_t>(seq_len);
  batch.tokens.insert(batch.tokens.end(), count, 0);
  batch.targets.insert(batch.targets.end(), count, kIgnoreTarget);
  batch.positions.insert(batch.positions.end(), count, 0);
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(seq_len); ++i) {
    batch.first_keys.push_back(i);  // nothing is worth attending to
  }
}

}  // namespace shardwright::exec
