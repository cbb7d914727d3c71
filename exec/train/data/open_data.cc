// SPDX-License-Identifier: Apache-2.0
#include "exec/train/data/open_data.h"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "exec/train/data/blended_dataset.h"
#include "exec/train/data/mapped_file.h"
#include "exec/train/data/sft_dataset.h"
#include "exec/train/data/sft_line.h"
#include "exec/train/data/token_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"
#include "sim/core/base/words.h"

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
  std::shared_ptr<const TokenSource> source;
  if (format == DataFormat::kText) source = open_text(path, options.vocab, options.bytes);
  if (format == DataFormat::kBin) source = open_llmc_tokens(path, options.vocab);
  if (format == DataFormat::kTokens) source = open_token_file(path, options.vocab);
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
