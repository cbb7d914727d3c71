// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/dataset.h"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "exec/train/data/mapped_file.h"
#include "exec/train/data/sft_dataset.h"
#include "exec/train/data/token_file.h"
#include "kernels/random.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

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

namespace {

/// Appends a sequence that counts nothing, to fill up a batch.
void append_padding(std::int64_t seq_len, Batch& batch) {
  const auto count = static_cast<std::size_t>(seq_len);
  batch.tokens.insert(batch.tokens.end(), count, 0);
  batch.targets.insert(batch.targets.end(), count, kIgnoreTarget);
  batch.positions.insert(batch.positions.end(), count, 0);
  for (std::int32_t i = 0; i < static_cast<std::int32_t>(seq_len); ++i) {
    batch.first_keys.push_back(i);  // nothing is worth attending to
  }
}

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

namespace {

constexpr std::uint32_t kRounds = 8;

}  // namespace

DataOrder::DataOrder(std::uint64_t seed, std::int64_t sequences)
    : seed_(seed), sequences_(sequences) {
  SHARDWRIGHT_CHECK(sequences > 0 && sequences <= (std::int64_t{1} << 60), "{} sequences",
                    sequences);
  while ((std::uint64_t{1} << (2 * half_bits_)) < static_cast<std::uint64_t>(sequences)) {
    ++half_bits_;
  }
}

std::uint64_t DataOrder::permute(std::uint64_t value, std::uint32_t epoch) const {
  const kernels::RandomStream random{seed_, kernels::RandomSite::kShuffle, epoch};
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t mixed = left ^ (random.word64(round << 32 | right) & mask);
    left = right;
    right = mixed;
  }
  return left << half_bits_ | right;
}

std::int64_t DataOrder::sequence_at(std::int64_t position) const {
  const auto epoch = static_cast<std::uint32_t>(position / sequences_);
  auto value = static_cast<std::uint64_t>(position % sequences_);
  do {
    value = permute(value, epoch);
  } while (value >= static_cast<std::uint64_t>(sequences_));
  return static_cast<std::int64_t>(value);
}

Batch training_batch(const Dataset& data, const DataOrder& order, const BatchShape& shape,
                     std::int64_t position, std::int64_t rank) {
  Batch batch;
  for (std::int64_t m = 0; m < shape.micro_steps; ++m) {
    const std::int64_t first = position + (m * shape.ranks + rank) * shape.micro_batch;
    for (std::int64_t i = 0; i < shape.micro_batch; ++i) {
      data.append(order.sequence_at(first + i), batch);
    }
  }
  return batch;
}

Batch evaluation_batch(const Dataset& data, const BatchShape& shape, std::int64_t seq_len,
                       std::int64_t first, std::int64_t last, std::int64_t rank) {
  Batch batch;
  for (std::int64_t i = 0; i < shape.micro_batch; ++i) {
    const std::int64_t sequence = first + rank * shape.micro_batch + i;
    if (sequence < last) {
      data.append(sequence, batch);
    } else {
      append_padding(seq_len, batch);
    }
  }
  return batch;
}

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
  std::shared_ptr<const TokenSource> source;
  if (format == DataFormat::kText) source = open_text(path, options.vocab, options.bytes);
  if (format == DataFormat::kBin) source = open_llmc_tokens(path, options.vocab);
  if (format == DataFormat::kTokens) source = open_token_file(path, options.vocab);
  if (source && options.require_kin) options.require_kin(*source, path);
  if (options.checks && format != DataFormat::kText && source) check_tokens(*source);
  if (!source || !source->mask().empty()) {
    const auto corpus = std::make_shared<const SftCorpus>(
        source ? SftCorpus::of(*source, path)
               : SftCorpus::load(path, options.vocab, options.bytes));
    const auto documents = static_cast<std::int64_t>(corpus->documents().size());
    const std::int64_t kept = held_out(documents, 1, options);
    const auto trained = static_cast<std::size_t>(documents - kept);
    data.train = make_sft_dataset(corpus, t, 0, trained);
    if (kept > 0) {
      data.eval = make_sft_dataset(corpus, t, trained, static_cast<std::size_t>(kept));
    }
    return data;
  }
  const std::int64_t kept = held_out(source->size(), t + 1, options);
  data.train = make_clm_dataset(source, t, 0, source->size() - kept, options.ends);
  if (kept > 0) data.eval = make_clm_dataset(source, t, source->size() - kept, kept, options.ends);
  return data;
}

/// Of a folder the data in it and beneath, of a glob what it finds, by name.
std::vector<std::string> files_of(const std::string& word) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<std::string> files;
  if (fs::is_directory(word, ignored)) {
    constexpr std::string_view kEnds[] = {".bin", ".tok", ".jsonl", ".json", ".txt", ".md"};
    for (const auto& entry : fs::recursive_directory_iterator(word)) {
      const bool known = std::find(std::begin(kEnds), std::end(kEnds),
                                   entry.path().extension().string()) != std::end(kEnds);
      if (known && entry.is_regular_file() && !entry.path().filename().string().starts_with('.'))
        files.push_back(entry.path().string());
    }
  } else if (word != "synthetic" && !fs::exists(word, ignored) &&
             word.find_first_of("*?[") != std::string::npos) {
    glob_t found{};
    if (::glob(word.c_str(), 0, nullptr, &found) == 0)
      files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
  } else {
    return {word};
  }
  if (files.empty())
    throw Error(
        fmt::format("{}: no file of this folder or pattern is data, expected *.bin, *.tok, "
                    "*.jsonl, *.json, *.txt or *.md",
                    word));
  std::sort(files.begin(), files.end());
  return files;
}

/// Several as one; of each, its own end is held out.
template <class Parts, class Open>
Data blend(const Parts& parts, const Open& open) {
  if (parts.size() == 1) return open(parts.front()).first;
  std::vector<BlendedPart> train, eval;
  for (const auto& part : parts) {
    auto [one, share] = open(part);
    train.push_back({std::move(one.train), share});
    if (one.eval) eval.push_back({std::move(one.eval), 0});
  }
  Data data;
  data.train = make_blended_dataset(std::move(train));
  if (!eval.empty()) data.eval = make_blended_dataset(std::move(eval));
  return data;
}

Data open_all(const std::vector<DataPart>& parts, const DataOptions& options) {
  return blend(parts, [&](const DataPart& part) {
    return std::pair(
        blend(part.files,
              [&](const std::string& path) { return std::pair(open_one(path, options), 0.0); }),
        part.share);
  });
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

bool is_text(const std::string& path, DataFormat format) {
  if (path == "synthetic") return false;
  if (format == DataFormat::kAuto) format = detect(path);
  if (format != DataFormat::kSft) return format == DataFormat::kText;
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  return holds_text(text.substr(0, text.find('\n')));
}

std::vector<DataPart> data_parts(const std::string& text) {
  std::error_code ignored;
  if (text.find(',') == std::string::npos || std::filesystem::exists(text, ignored)) {
    return {{text, files_of(text)}};
  }
  std::vector<DataPart> parts;
  for (const std::string& word : split_commas(text)) {
    const std::size_t at = word.rfind('=');
    DataPart& part = parts.emplace_back();
    part.word = word.substr(0, at);
    if (at != std::string::npos) {
      const std::optional<double> share = parse_double(word.substr(at + 1));
      if (!share || !(*share > 0) || !std::isfinite(*share)) {
        throw Error(fmt::format("the share of {} is '{}', expected a number above 0", part.word,
                                word.substr(at + 1)));
      }
      part.share = *share;
    }
    if (part.word.empty() || part.word == "synthetic") {
      throw Error(
          fmt::format("the data are '{}', expected PATH[=SHARE] of files joined by commas", text));
    }
    if ((part.share > 0) != (parts.front().share > 0)) {
      throw Error(
          fmt::format("the data are '{}', expected a share for each file or for none", text));
    }
    part.files = files_of(part.word);
  }
  return parts;
}

Data open_data(const DataOptions& options) {
  DataOptions train = options;
  train.holds_out = options.holds_out && options.eval.empty();
  const std::vector<DataPart> parts = data_parts(options.train);
  Data data = open_all(parts, train);
  for (const DataPart& part : parts) {
    if (part.word != "synthetic")
      data.files.insert(data.files.end(), part.files.begin(), part.files.end());
  }
  if (!options.eval.empty()) {
    DataOptions eval = options;
    eval.holds_out = false;
    data.eval = open_all(data_parts(options.eval), eval).train;
  }
  return data;
}

}  // namespace shardwright::exec
