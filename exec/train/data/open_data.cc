// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/open_data.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "exec/train/data/mapped_file.h"
#include "exec/train/data/sft_dataset.h"
#include "exec/train/data/token_file.h"
#include "sim/core/error.h"
#include "sim/core/nearest.h"

namespace shardwright::exec {
namespace {

constexpr std::pair<DataFormat, std::string_view> kNames[] = {{DataFormat::kAuto, "auto"},
                                                              {DataFormat::kText, "text"},
                                                              {DataFormat::kBin, "bin"},
                                                              {DataFormat::kTokens, "tokens"},
                                                              {DataFormat::kSft, "sft"}};

DataFormat detect(const std::string& path) {
  const MappedFile file(path);
  if (is_token_file(file.bytes())) return DataFormat::kTokens;
  if (is_llmc_file(file.bytes())) return DataFormat::kBin;
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
  for (const auto& [format, known] : kNames) {
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
