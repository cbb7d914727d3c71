// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/blended_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "exec/train/data/checksum.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

constexpr double kMostSequences = 1LL << 52;  // of an epoch

class BlendedDataset final : public Dataset {
 public:
  explicit BlendedDataset(std::vector<BlendedPart> parts) : parts_(std::move(parts)) {
    double all = 0, stretched = 0;
    for (const BlendedPart& part : parts_) all += part.share;
    for (const BlendedPart& part : parts_) {
      const auto own = static_cast<double>(part.data->sequences());
      stretched = std::max(stretched, all > 0 ? own * all / part.share : 0);
    }
    if (stretched > kMostSequences) {
      throw Error(
          fmt::format("an epoch of these files by their shares has {:.3g} sequences, "
                      "expected larger shares for large files",
                      stretched));
    }
    for (const BlendedPart& part : parts_) {
      const std::int64_t count =
          all > 0 ? std::llround(stretched * part.share / all) : part.data->sequences();
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + std::max<std::int64_t>(count, 1));
    }
  }

  std::int64_t sequences() const override { return ends_.back(); }

  void append(std::int64_t sequence, Batch& batch) const override {
    SHARDWRIGHT_CHECK(sequence >= 0 && sequence < sequences(), "sequence {} of {}", sequence,
                      sequences());
    const auto end = std::upper_bound(ends_.begin(), ends_.end(), sequence);
    const Dataset& data = *parts_[static_cast<std::size_t>(end - ends_.begin())].data;
    const std::int64_t begin = end == ends_.begin() ? 0 : *(end - 1);
    data.append((sequence - begin) % data.sequences(), batch);
  }

  std::string describe() const override {
    std::string words;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const std::int64_t count = ends_[i] - (i == 0 ? 0 : ends_[i - 1]);
      words += fmt::format("{}{:.3g} % of {}", i == 0 ? "" : "; ",
                           100 * static_cast<double>(count) / static_cast<double>(sequences()),
                           parts_[i].data->describe());
    }
    return words;
  }

  bool packs_documents() const override {
    return std::any_of(parts_.begin(), parts_.end(),
                       [](const BlendedPart& part) { return part.data->packs_documents(); });
  }

  std::uint32_t fingerprint() const override {
    std::uint32_t all = crc32(std::as_bytes(std::span(ends_)), 0);
    for (const BlendedPart& part : parts_) {
      const std::uint32_t one = part.data->fingerprint();
      all = crc32(std::as_bytes(std::span(&one, 1)), all);
    }
    return all;
  }

 private:
  std::vector<BlendedPart> parts_;
  std::vector<std::int64_t> ends_;  // of each part's sequences in an epoch
};

}  // namespace

std::unique_ptr<Dataset> make_blended_dataset(std::vector<BlendedPart> parts) {
  return std::make_unique<BlendedDataset>(std::move(parts));
}

}  // namespace shardwright::exec
