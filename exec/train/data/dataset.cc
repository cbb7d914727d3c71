// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/dataset.h"

#include <fmt/core.h>

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
             std::int64_t count)
      : source_(std::move(source)),
        seq_len_(seq_len),
        first_(first),
        sequences_((count - 1) / seq_len) {
    if (count <= seq_len) {
      throw Error(
          fmt::format("{}: {} tokens are too few, expected at least {}, a sequence and its "
                      "last target",
                      source_->describe(), count, seq_len + 1));
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
  }

  std::string describe() const override {
    return fmt::format("{} sequences of {} tokens from {}", sequences_, seq_len_,
                       source_->describe());
  }

  std::uint32_t fingerprint() const override {
    const std::int64_t parts[] = {seq_len_, first_, sequences_};
    return crc32(std::as_bytes(std::span(parts)), source_->fingerprint());
  }

 private:
  std::shared_ptr<const TokenSource> source_;
  std::int64_t seq_len_;
  std::int64_t first_;
  std::int64_t sequences_;
};

}  // namespace

std::unique_ptr<Dataset> make_clm_dataset(std::shared_ptr<const TokenSource> source,
                                          std::int64_t seq_len, std::int64_t first,
                                          std::int64_t count) {
  return std::make_unique<ClmDataset>(std::move(source), seq_len, first, count);
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
