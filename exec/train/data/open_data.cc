// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/open_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>

#include "exec/train/data/mapped_file.h"
#include "exec/train/data/sft_dataset.h"
#include "exec/train/data/token_file.h"
#include "sim/core/error.h"
#include "sim/core/nearest.h"

namespace shardwright::exec {
namespace {

constexpr std::pair<DataFormat, std::string_view> kFormatNames[] = {{DataFormat::kAuto, "auto"},
                                                                    {DataFormat::kText, "text"},
                                                                    {DataFormat::kBin, "bin"},
                                                                    {DataFormat::kTokens, "tokens"},
                                                                    {DataFormat::kSft, "sft"}};

bool begins_with(std::span<const std::byte> bytes, std::initializer_list<int> magic) {
  return std::equal(magic.begin(), magic.end(), bytes.begin(),
                    bytes.begin() + std::min(std::ssize(bytes), std::ssize(magic)),
                    [](int a, std::byte b) { return a == std::to_integer<int>(b); });
}

/// Nobody means to train on the bytes of an archive; what means to says --format text.
void refuse_binary(const MappedFile& file) {
  constexpr std::size_t kLookedAt = 1 << 16;
  const std::span<const std::byte> bytes = file.bytes();
  if (begins_with(bytes, {0x1f, 0x8b}) || begins_with(bytes, {0x28, 0xb5, 0x2f, 0xfd})) {
    throw Error(
        fmt::format("{}: is compressed, expected what is in it: unpack it with gunzip or "
                    "unzstd first",
                    file.name()));
  }
  const auto head = bytes.first(std::min(bytes.size(), kLookedAt));
  if (std::find(head.begin(), head.end(), std::byte{0}) != head.end()) {
    throw Error(
        fmt::format("{}: holds zero bytes, so it is no text, and it is no token file "
                    "either; --format text trains on its bytes all the same",
                    file.name()));
  }
}

DataFormat detect(const std::string& path) {
  const MappedFile file(path);
  if (is_token_file(file.bytes())) return DataFormat::kTokens;
  if (is_llmc_file(file.bytes())) return DataFormat::kBin;
  refuse_binary(file);
  return path.ends_with(".jsonl") ? DataFormat::kSft : DataFormat::kText;
}

/// How many of `all` are held out: a share, at least `least`, none when too little would be left.
std::int64_t held_out(std::int64_t all, std::int64_t least, const DataOptions& options) {
  if (!options.holds_out) return 0;
  const auto share =
      static_cast<std::int64_t>(static_cast<double>(all) * options.held_out_fraction);
  const std::int64_t count = std::max(share, least);
  return all - count >= least ? count : 0;
}

/// One file (or "synthetic") as training data; its end as evaluation data where that is asked for.
Data open_one(const std::string& path, const DataOptions& options) {
  Data data;
  const std::int64_t t = options.seq_len;
  if (path == "synthetic") {
    const std::shared_ptr<const TokenSource> source = synthetic_tokens(options.seed, options.vocab);
    const std::int64_t kept = options.holds_out ? 64 * t + 1 : 0;
    data.train = make_clm_dataset(source, t, 0, source->size() - kept);
    if (kept > 0) data.eval = make_clm_dataset(source, t, source->size() - kept, kept);
    return data;
  }
  const DataFormat format = options.format == DataFormat::kAuto ? detect(path) : options.format;
  if (format == DataFormat::kSft) {
    const auto corpus = std::make_shared<const SftCorpus>(SftCorpus::load(path, options.vocab));
    const auto documents = static_cast<std::int64_t>(corpus->documents().size());
    const std::int64_t kept = held_out(documents, 1, options);
    const auto trained = static_cast<std::size_t>(documents - kept);
    data.train = make_sft_dataset(corpus, t, 0, trained);
    if (kept > 0) {
      data.eval = make_sft_dataset(corpus, t, trained, static_cast<std::size_t>(kept));
    }
    return data;
  }
  const std::shared_ptr<const TokenSource> source =
      format == DataFormat::kText  ? open_text(path, options.vocab)
      : format == DataFormat::kBin ? open_llmc_tokens(path, options.vocab)
                                   : open_token_file(path, options.vocab);
  const std::int64_t kept = held_out(source->size(), t + 1, options);
  data.train = make_clm_dataset(source, t, 0, source->size() - kept);
  if (kept > 0) data.eval = make_clm_dataset(source, t, source->size() - kept, kept);
  return data;
}

}  // namespace

DataFormat data_format_from(std::string_view name) {
  std::vector<std::string> words;
  for (const auto& [format, known] : kFormatNames) {
    if (known == name) return format;
    words.emplace_back(known);
  }
  throw Error(fmt::format("the data format is '{}', expected auto, text, bin, tokens or sft{}",
                          name, did_you_mean(name, words)));
}

Data open_data(const DataOptions& options) {
  DataOptions train = options;
  train.holds_out = options.holds_out && options.eval.empty();
  Data data = open_one(options.train, train);
  if (!options.eval.empty()) {
    DataOptions eval = options;
    eval.holds_out = false;
    data.eval = open_one(options.eval, eval).train;
  }
  return data;
}

}  // namespace shardwright::exec
